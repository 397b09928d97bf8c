"""What Dagster shows of an audit: numbers to plot, in a green check as in a red one, and evidence for each finding.
What the audit finds is tests/unit/commit/test_audit.py's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyiceberg.catalog import load_catalog

from lakehouse_assets.commit.audit import AuditFinding
from lakehouse_assets.commit.staged import StagedChunk
from lakehouse_assets.commit.strategies import ReplacePartitions
from lakehouse_assets.declare.table import AUDIT
from lakehouse_assets.run.report import audit_failure, check_result
from tests.support.forks import Daily, daily_rows
from tests.support.tables import numbers

KEYS = ("2013-01-01", "2013-01-02")
FINDINGS = [
    AuditFinding("empty", "one partition is empty", {"partitions": ["2013-01-02"]}),
    AuditFinding("unique", "n is not unique", {"chunk": 0}),
    AuditFinding("unique", "n is not unique either", {"chunk": 1}),
]
RULES = {"lake", "text", *ReplacePartitions.rules}


@pytest.fixture
def staged(tmp_path: Path) -> list[StagedChunk]:
    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    daily = Daily.create(catalog)
    return [daily.stage("run", n, [key], daily_rows(key, each=3)) for n, key in enumerate(KEYS)]


def shown(result: dg.AssetCheckResult) -> dict[str, Any]:
    return {name: value.value for name, value in result.metadata.items()}


def test_a_green_check_has_numbers_and_a_zero_for_each_rule(staged: list[StagedChunk]) -> None:
    result = check_result(numbers(), ReplacePartitions.rules, "run-id", KEYS, staged, [], 1.23456)
    found = shown(result)
    assert result.passed
    assert result.description is None
    assert (found["rows"], found["files"], found["seconds"]) == (6, 2, 1.235)
    assert found["bytes"] == sum(file.file_size_in_bytes for chunk in staged for file in chunk.files)
    assert {name: found[name] for name in found if name.startswith("findings_")} == {f"findings_{r}": 0 for r in RULES}
    assert (found["run"], found["partitions"]) == ("run-id", "2013-01-01..2013-01-02 (2)")


def test_a_red_check_counts_its_findings_by_rule_and_shows_the_evidence(staged: list[StagedChunk]) -> None:
    result = check_result(numbers(), ReplacePartitions.rules, "run-id", KEYS, staged, FINDINGS, 0.0)
    found = shown(result)
    assert not result.passed
    assert result.description == "; ".join(finding.message for finding in FINDINGS)
    assert (found["findings_empty"], found["findings_unique"], found["findings_lake"]) == (1, 2, 0)
    assert found["1 empty"] == {"partitions": ["2013-01-02"]}
    assert found["3 unique"] == {"chunk": 1}


def test_all_numbers_are_of_kinds_that_the_ui_plots(staged: list[StagedChunk]) -> None:
    metadata = check_result(numbers(), ReplacePartitions.rules, "run-id", KEYS, staged, [], 0.5).metadata
    plotted = {n for n, v in metadata.items() if isinstance(v, dg.IntMetadataValue | dg.FloatMetadataValue)}
    assert plotted == {"rows", "files", "bytes", "seconds", *(f"findings_{rule}" for rule in RULES)}


def test_what_nothing_was_staged_for_has_numbers_too() -> None:
    found = shown(check_result(numbers(), ReplacePartitions.rules, "run-id", KEYS, [], [], 0.0))
    assert (found["rows"], found["files"], found["bytes"]) == (0, 0, 0)


def test_a_red_audit_fails_the_run_for_good() -> None:
    failure = audit_failure(numbers(), KEYS, FINDINGS)
    assert "one partition is empty; n is not unique" in (failure.description or "")
    assert "Nothing was published" in (failure.description or "")
    assert not failure.allow_retries


def test_of_a_range_the_newest_execution_is_the_evaluation_not_a_plan(instance: dg.DagsterInstance) -> None:
    """Dagster plans an execution for each key, and the UI shows the newest one as the check's state (docs/why.md)."""
    check = dg.AssetCheckKey(dg.AssetKey("days"), AUDIT)

    @dg.asset(
        partitions_def=dg.DailyPartitionsDefinition("2024-01-01"),
        backfill_policy=dg.BackfillPolicy.single_run(),
        check_specs=[dg.AssetCheckSpec(AUDIT, asset=check.asset_key)],
    )
    def days():
        yield dg.AssetCheckResult(check_name=AUDIT, passed=True)
        yield dg.MaterializeResult()

    span = {"dagster/asset_partition_range_start": "2024-01-01", "dagster/asset_partition_range_end": "2024-01-10"}
    dg.materialize([days], instance=instance, tags=span)
    newest, *planned = instance.event_log_storage.get_asset_check_execution_history(check, limit=100)
    assert newest.evaluation.passed
    assert len(planned) == 10
