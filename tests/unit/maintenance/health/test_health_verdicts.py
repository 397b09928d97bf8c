"""What a person sees of a table's health: numbers that plot without gaps, one text, the worst partitions as a table."""

from __future__ import annotations

from dataclasses import replace

import dagster as dg

from lakehouse_assets.maintenance.collect.report import LastLook
from lakehouse_assets.maintenance.health.findings import Check
from lakehouse_assets.maintenance.health.health import TableHealth
from lakehouse_assets.maintenance.health.verdicts import Verdicts, not_there, unreadable, verdicts
from lakehouse_assets.maintenance.levels import LEVELS
from tests.support.healths import partition, table

KEY = dg.AssetKey(["demo", "t"])
HOUR = 3_600_000


def seen(health: TableHealth, now_ms: int = 10 * HOUR) -> Verdicts:
    return verdicts(health, LEVELS, now_ms)


def numbers(found: Verdicts) -> dict[str, int | float]:
    return {
        name: value
        for verdict in found.values()
        for name, value in verdict.metadata.items()
        if isinstance(value, int | float)
    }


ILL = table(
    partition("a", files=130, fragments=130, size=2**20, rows=9),
    partition("b", files=12, fragments=12, delete_files=3, rows=100, rows_deleted_at_most=20),
    partition("c", files=1),
    snapshots=5,
    last_write_ms=9 * HOUR - HOUR // 2,
)


def test_numbers_are_there_whatever_they_are_so_that_the_ui_draws_a_line() -> None:
    well = table(last_write_ms=1)
    assert numbers(seen(well)).keys() == numbers(seen(ILL)).keys()
    assert numbers(seen(well))["files"] == 0
    assert numbers(seen(ILL)) | {"files": 143, "fragments": 142, "hours_since_last_write": 1.5} == numbers(seen(ILL))


def test_a_healthy_table_passes_and_says_so() -> None:
    for verdict in seen(table()).values():
        assert (verdict.passed, verdict.description, verdict.metadata["findings"]) == (True, "nothing to do", 0)


def test_findings_have_their_texts_their_severity_and_what_mends_them() -> None:
    found = seen(ILL)
    files = found[Check.FILES]
    assert (files.passed, files.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert files.description == (
        "2 of 3 partitions have up to 130 fragments (files of at most 64 MiB, target 512 MiB) (fragments fixes it); "
        "1 of 3 partitions has 20 % of the rows deleted, at most, by delete files (deletes fixes it)"
    )
    assert found[Check.HISTORY].passed
    assert found[Check.STORAGE].passed
    warned = seen(table(partition(fragments=12)))[Check.FILES]
    assert (warned.passed, warned.severity) == (False, dg.AssetCheckSeverity.WARN)


def test_no_work_is_promised_for_a_table_that_maintenance_leaves_alone() -> None:
    left = seen(replace(ILL, format_version=3))[Check.FILES]
    assert "fixes it" not in left.description
    assert "130 fragments" in left.description
    assert "format version is 3" in left.description
    assert not left.passed


def test_the_worst_partitions_are_a_table_for_each_finding() -> None:
    metadata = seen(ILL)[Check.FILES].metadata
    worst = metadata["worst: fragments"]
    assert isinstance(worst, dg.TableMetadataValue)
    assert [record.data["partition"] for record in worst.records] == ["a", "b"]
    assert worst.records[0].data["size"] == "1 MiB"
    (deletes,) = metadata["worst: deletes"].records
    assert (deletes.data["partition"], deletes.data["rows deleted at most"]) == ("b", 20)


def test_a_verdict_is_the_same_for_an_op_and_for_a_sensor() -> None:
    for check, verdict in seen(ILL).items():
        result, evaluation = verdict.result(KEY, check), verdict.evaluation(KEY, check)
        assert (result.asset_key, result.check_name) == (KEY, check) == (evaluation.asset_key, evaluation.check_name)
        assert (result.passed, result.severity, result.description) == (
            *(evaluation.passed, evaluation.severity),
            evaluation.description,
        )
        assert result.metadata == evaluation.metadata


def test_unknown_is_a_warning_and_a_missing_table_is_none() -> None:
    for verdict in unreadable(PermissionError("denied: s3://lake")).values():
        assert (verdict.passed, verdict.severity) == (False, dg.AssetCheckSeverity.WARN)
        assert verdict.description == "could not be read: PermissionError: denied: s3://lake"
    assert all(verdict.passed for verdict in not_there().values())


def test_what_is_needed_is_said_in_the_same_words_whatever_the_numbers() -> None:
    assert seen(table())[Check.FILES].metadata["needs"] == "nothing"
    for fragments in (130, 200):
        ill = seen(table(partition(fragments=fragments, files=fragments, size=1), snapshots=1_001))
        assert [ill[check].metadata["needs"] for check in Check] == ["fragments (ERROR)", "expire (WARN)", "nothing"]
    by_hand = replace(table(), collected=LastLook(problems=("torn",)))
    assert seen(by_hand)[Check.STORAGE].metadata["needs"] == "a person (ERROR)"


def test_the_last_look_is_shown_once_there_was_one_that_judged_the_files() -> None:
    looked = replace(table(), collected=LastLook(at_ms=8 * HOUR, files=3, size=30, due=2, problems=("torn",)))
    assert numbers(seen(looked)).items() >= {
        ("unneeded_files", 3),
        ("unneeded_bytes", 30),
        ("unneeded_files_due", 2),
        ("hours_since_last_look", 2.0),
    }
    never = replace(table(), collected=LastLook(problems=("torn",)))
    assert not any("unneeded" in name or "look" in name for name in numbers(seen(never)))
    assert seen(never)[Check.STORAGE].description == "torn"
