"""What a compaction's report and its snapshot come to: gains by what was removed, endings by what landed. And what a
level asks for is what a rewrite plans."""

from __future__ import annotations

import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, NestedField

from lakehouse_assets.commit.landing import Proof, ReadSnapshot
from lakehouse_assets.commit.manifests import Entries
from lakehouse_assets.declare.options import Maintenance
from lakehouse_assets.maintenance.health.look import look
from lakehouse_assets.maintenance.health.summaries import SummaryCache
from lakehouse_assets.maintenance.level import MIB, Action, Engine, Gain
from lakehouse_assets.maintenance.rewrite.compact import CompactionReport, Outcome, PartitionReport
from lakehouse_assets.maintenance.rewrite.plan import LEAST_INPUT_FILES, MIN_INPUT_FILES, plan_rewrites
from lakehouse_assets.maintenance.rewrite_levels import FragmentsLevel, UndersizedLevel, rewritten
from lakehouse_assets.wire.work import Digest
from tests.support.manifests import POSITIONS, Crafted, Listed, sqlite_catalog
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
    """Partitions from 2024-01-01 on."""
    parts = [
        PartitionReport(
            f"day=2024-01-0{n}",
            outcome,
            5,
            1000,
            files_after=1,
            bytes_after=900,
            proof=PROOF if outcome is not Outcome.FAILED else None,
            reason="" if outcome is Outcome.LANDED else "why",
        )
        for n, outcome in enumerate(outcomes, start=1)
    ]
    return CompactionReport(tuple(parts), snapshot_id)


def test_delete_files_that_were_applied_but_stay_are_no_gain(metadata: TableMetadata) -> None:
    found = rewritten(metadata, report(Outcome.LANDED, Outcome.LANDED))
    assert found.gain == Gain(files=8, delete_files=1)
    assert found.proof == "10 rows, digest b367fbf713bdb49e"
    assert found.size == 2000


def test_what_did_not_land_was_rewritten_all_the_same_and_gains_nothing(metadata: TableMetadata) -> None:
    found = rewritten(metadata, report(Outcome.DROPPED, snapshot_id=None))
    assert (found.gain, found.size, found.nothing_landed) == (Gain(), 1000, True)
    assert found.dropped == ("day=2024-01-01: why",)
    assert found.faults == ()


@pytest.mark.parametrize(
    ("outcomes", "nothing_landed"),
    [
        ([], False),
        ([Outcome.LANDED, Outcome.FAILED, Outcome.DROPPED], False),
        ([Outcome.DROPPED, Outcome.DROPPED], True),
        ([Outcome.DROPPED, Outcome.UNPROVED], True),
    ],
)
def test_work_of_which_nothing_landed_was_in_vain(
    metadata: TableMetadata, outcomes: list[Outcome], nothing_landed: bool
) -> None:
    assert rewritten(metadata, report(*outcomes)).nothing_landed is nothing_landed


def test_what_changed_rows_is_a_fault_and_what_met_a_writer_is_none(metadata: TableMetadata) -> None:
    found = rewritten(metadata, report(Outcome.LANDED, Outcome.DROPPED, Outcome.UNPROVED))
    assert found.faults == ("day=2024-01-03: why",)
    assert found.dropped == ("day=2024-01-02: why", "day=2024-01-03: why")


def test_what_landed_is_told_though_the_table_can_not_be_read_afterwards() -> None:
    def load_table(identifier: str) -> None:
        raise OSError("no answer")

    warnings: list[str] = []
    log = SimpleNamespace(warning=warnings.append)
    means: Any = SimpleNamespace(catalog=SimpleNamespace(load_table=load_table), context=SimpleNamespace(log=log))
    level = FragmentsLevel()
    action = Action("demo.numbers", level, Engine.PYTHON, (), "", Gain(), 0, 0.0)
    found = level._landed(means, action, report(Outcome.LANDED, Outcome.DROPPED))
    assert (found.gain, found.faults, found.nothing_landed) == (Gain(files=4), (), False)
    assert warnings == ["demo.numbers: what the rewrite gained can't be read: OSError: no answer"]


@pytest.mark.parametrize("target", [512 * MIB, 16 * MIB])
@pytest.mark.parametrize("force", [False, True])
def test_a_rewrite_plans_something_for_each_partition_that_a_level_asks_for(
    tmp_path: Path, target: int, force: bool
) -> None:
    """Else the level would ask for it again and again. Files of two thirds to three quarters of the target fill no
    group by twos."""
    table, rng = numbers(), random.Random(1)
    days = [[0.7] * 4, [0.75] * 4, [0.67] * 5, [0.74] * 2 + [0.76] * 5, [0.74] * 2]
    days += [
        [rng.uniform(*rng.choice([(0, 0.2), (0.5, 0.8)])) for _ in range(rng.randrange(2, 12))] for _ in range(100)
    ]
    options = {"write.target-file-size-bytes": str(target)}
    made = Crafted.create(sqlite_catalog(tmp_path), table.schema, table.spec)
    made.table.transaction().set_properties(options).commit_transaction()
    files = [
        Listed((day,), size=int(share * target), sequence=2) for day, shares in enumerate(days) for share in shares
    ]
    # Some days have a delete file that is older than their files.
    deletes = [Listed((day,), content=POSITIONS, sequence=1) for day in range(0, len(days), 3)]
    loaded = made.list(files, deletes)
    health = look(loaded, SummaryCache(loaded.io, str(tmp_path)))
    asked = {
        candidate.partition.values[0]
        for level in (UndersizedLevel(), FragmentsLevel())
        for candidate in level.candidates(health, Maintenance(), force=force)
        if candidate.partition
    }
    snapshot = loaded.current_snapshot()
    assert snapshot
    least = LEAST_INPUT_FILES if force else MIN_INPUT_FILES
    tasks = plan_rewrites(ReadSnapshot(loaded.metadata, snapshot), loaded.io, Entries(), min_input_files=least)
    planned = {task.partition[1][0] for task in tasks}
    assert {0, 1, 2} <= asked
    assert asked <= planned, [days[day] for day in asked - planned]


def test_the_partition_of_nan_is_rewritten_as_others_are(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "x", DoubleType()))
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "x"))
    made = Crafted.create(sqlite_catalog(tmp_path), schema, spec)
    loaded = made.list(*[[Listed((value,))] for value in (math.nan, 1.0) for _ in range(12)])
    snapshot = loaded.current_snapshot()
    assert snapshot
    health = look(loaded, SummaryCache(loaded.io, str(tmp_path)))
    asked = {(p.spec_id, Record(*p.values)) for p in health.partitions}
    tasks = plan_rewrites(ReadSnapshot(loaded.metadata, snapshot), loaded.io, Entries(), asked)
    assert [(task.name, len(task.entries)) for task in tasks] == [("x=1.0", 12), ("x=nan", 12)]
