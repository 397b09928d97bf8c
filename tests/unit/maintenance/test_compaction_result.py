"""What a compaction's report and its snapshot come to: gains by what was removed, endings by what landed."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.typedef import Record

from lakehouse_assets.commit.proof import Digest, Proof
from lakehouse_assets.declare.care import Level
from lakehouse_assets.health.gain import Gain, PartitionWork
from lakehouse_assets.maintenance.compaction_result import compacted
from lakehouse_assets.maintenance.memory import Ending
from lakehouse_assets.maintenance.planned import Action, Cost, Engine
from lakehouse_assets.rewrite.compact import CompactionReport, Outcome, PartitionReport
from tests.support.healths import partition
from tests.support.manifests import sqlite_catalog
from tests.support.tables import numbers

PROOF = Proof(Digest(5, 1, 1, 255), Digest(5, 1, 1, 255))
SNAPSHOT = 77


@pytest.fixture
def metadata(tmp_path: Path) -> TableMetadata:
    """Of a table whose last snapshot replaced ten files by two and removed one of its delete files."""
    catalog, table = sqlite_catalog(tmp_path), numbers()
    catalog.create_namespace("demo")
    made = catalog.create_table("demo.numbers", table.schema, partition_spec=table.spec).metadata
    counts = {"deleted-data-files": "10", "added-data-files": "2", "removed-delete-files": "1"}
    snapshot = Snapshot(
        snapshot_id=SNAPSHOT,
        sequence_number=1,
        timestamp_ms=1,
        manifest_list="file:///none",
        summary=Summary(Operation.REPLACE, **counts),
    )
    return made.model_copy(update={"snapshots": [snapshot]})


def report(*outcomes: Outcome, snapshot_id: int | None = SNAPSHOT) -> CompactionReport:
    """Partitions from 2024-01-01 on, each with three delete files applied."""
    parts = [
        PartitionReport(
            ((0, Record(19_722 + n)),),
            f"day=2024-01-0{n}",
            outcome,
            5,
            1000,
            3,
            files_after=1,
            bytes_after=900,
            proof=PROOF if outcome is not Outcome.FAILED else None,
            reason="" if outcome is Outcome.LANDED else "why",
        )
        for n, outcome in enumerate(outcomes, start=1)
    ]
    return CompactionReport(tuple(parts), None, snapshot_id, {})


def days(count: int) -> list[PartitionWork]:
    return [PartitionWork(partition(values=(19_723 + n,)), Gain(), 0, 0) for n in range(count)]


def action(count: int) -> Action:
    return Action("demo.numbers", Level.DELETES, Engine.SPARK, tuple(days(count)), "", Gain(), Cost())


def test_delete_files_that_were_applied_but_stay_are_no_gain(metadata: TableMetadata) -> None:
    found = compacted(metadata, action(2), report(Outcome.LANDED, Outcome.LANDED))
    assert found.gain == Gain(files=8, delete_files=1)
    assert found.proof == "10 rows, digest b367fbf713bdb49e"
    assert found.size == 2000


def test_what_did_not_land_was_rewritten_all_the_same_and_gains_nothing(metadata: TableMetadata) -> None:
    found = compacted(metadata, action(1), report(Outcome.DROPPED, snapshot_id=None))
    assert (found.gain, found.size, found.ending) == (Gain(), 1000, Ending.CONFLICT)
    assert found.dropped == ("day=2024-01-01: why",)
    assert found.faults == ()


@pytest.mark.parametrize(
    ("outcomes", "ending"),
    [
        ([], Ending.DONE),
        ([Outcome.LANDED, Outcome.FAILED, Outcome.DROPPED], Ending.DONE),
        ([Outcome.DROPPED, Outcome.DROPPED], Ending.CONFLICT),
        ([Outcome.DROPPED, Outcome.UNPROVED], Ending.FAILED),
        ([Outcome.NEEDS_SPARK], Ending.FAILED),
    ],
)
def test_the_ending_follows_from_what_landed(metadata: TableMetadata, outcomes: list[Outcome], ending: Ending) -> None:
    assert compacted(metadata, action(3), report(*outcomes)).ending is ending


def test_each_partition_is_remembered_as_it_fared(metadata: TableMetadata) -> None:
    found = compacted(metadata, action(4), report(Outcome.LANDED, Outcome.DROPPED, Outcome.UNPROVED))
    ids = [work.partition.id for work in days(4)]
    fates = [Ending.DONE, Ending.CONFLICT, Ending.FAILED, Ending.DONE]  # the last had nothing to gain any more
    assert found.partitions == dict(zip(ids, fates, strict=True))
    assert found.faults == ("day=2024-01-03: why",)
