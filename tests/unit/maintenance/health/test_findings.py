"""Each finding begins exactly at its threshold, names what mends it, and shows the worst partitions first."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lakehouse_assets.declare.options import Level
from lakehouse_assets.maintenance.health.findings import Check, Finding, Severity, by_check, size_text
from lakehouse_assets.maintenance.health.health import TableHealth
from lakehouse_assets.maintenance.level import MIB
from lakehouse_assets.maintenance.levels import LEVELS
from lakehouse_assets.maintenance.rewrite_levels import WORST
from tests.support.healths import partition, table


def findings(health: TableHealth) -> list[Finding]:
    return [finding for level in LEVELS for finding in level.findings(health)]


def only(found: Sequence[Finding]) -> tuple[Check, Severity, Level]:
    (finding,) = found
    return finding.check, finding.severity, finding.action


@pytest.mark.parametrize(
    ("health", "expected"),
    [
        (table(partition(fragments=11)), None),
        (table(partition(fragments=12)), (Check.FILES, Severity.WARN, Level.FRAGMENTS)),
        (table(partition(fragments=120)), (Check.FILES, Severity.ERROR, Level.FRAGMENTS)),
        (table(partition(undersized=9, undersized_size=512 * MIB - 1)), None),
        (table(partition(undersized=9, undersized_size=512 * MIB)), (Check.FILES, Severity.WARN, Level.UNDERSIZED)),
        # Two files of 0.7 of the target: two would be left, no rewrite mends that.
        (table(partition(undersized=2, undersized_size=717 * MIB)), None),
        (table(partition(undersized=99, undersized_size=5120 * MIB)), (Check.FILES, Severity.ERROR, Level.UNDERSIZED)),
        (table(partition(rows=1000, rows_deleted_at_most=99)), None),
        (table(partition(rows=1000, rows_deleted_at_most=100)), (Check.FILES, Severity.WARN, Level.DELETES)),
        (table(partition(rows=1000, rows_deleted_at_most=500)), (Check.FILES, Severity.ERROR, Level.DELETES)),
        (table(partition(rows=0, delete_files=3)), None),
        (table(snapshots=1000), None),
        (table(snapshots=1001), (Check.HISTORY, Severity.WARN, Level.EXPIRE)),
        (table(snapshots=10_000), (Check.HISTORY, Severity.ERROR, Level.EXPIRE)),
        (table(metadata_size=8 * MIB - 1), None),
        (table(metadata_size=8 * MIB), (Check.STORAGE, Severity.WARN, Level.EXPIRE)),
        (table(data_manifests=100), None),
        (
            table(data_manifests=60, delete_manifests=1, empty_manifests=40),
            (Check.STORAGE, Severity.WARN, Level.MANIFESTS),
        ),
        (table(data_manifests=1000), (Check.STORAGE, Severity.ERROR, Level.MANIFESTS)),
        (table(partition(files=29_001), data_manifests=120), None),  # 30 would do: four times as many is no finding
        (table(partition(files=29_000), data_manifests=120), (Check.STORAGE, Severity.WARN, Level.MANIFESTS)),
    ],
)
def test_a_finding_begins_at_its_threshold(health: TableHealth, expected: tuple[Check, Severity, Level] | None) -> None:
    found = findings(health)
    assert (only(found) if found else None) == expected


def test_one_finding_for_all_partitions_with_the_worst_first_and_no_more_than_ten() -> None:
    partitions = [partition(f"p{n:02}", fragments=n) for n in range(40)]
    (finding,) = findings(table(*partitions))
    assert len(finding.worst) == WORST
    assert [worst.fragments for worst in finding.worst] == list(range(39, 29, -1))
    assert finding.message == ("28 of 40 partitions have up to 39 fragments (files of at most 64 MiB, target 512 MiB)")


def test_one_partition_of_many_and_a_whole_table_are_said_as_such() -> None:
    (one,) = findings(table(partition("a", fragments=12), partition("b")))
    assert one.message.startswith("1 of 2 partitions has 12 fragments")
    (whole,) = findings(table(partition("whole table", rows=10, rows_deleted_at_most=4)))
    assert whole.message == "it has 40 % of the rows deleted, at most, by delete files"


def test_the_gravest_finding_of_a_check_comes_first() -> None:
    found = by_check(table(partition(files=12, fragments=12, rows=10, rows_deleted_at_most=9)), LEVELS)
    assert [finding.action for finding in found[Check.FILES]] == [Level.DELETES, Level.FRAGMENTS]
    assert found[Check.HISTORY] == found[Check.STORAGE] == []


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1 KiB"),
        (64 * MIB, "64 MiB"),
        (1.5 * 2**30, "1.5 GiB"),
        (999.6 * MIB, "1000 MiB"),
        (1000 * MIB, "1000 MiB"),
        (99.96 * MIB, "100 MiB"),
        (3 * 2**40, "3 TiB"),
    ],
)
def test_sizes_as_a_person_reads_them(size: float, text: str) -> None:
    assert size_text(size) == text
