"""Histories of tables as metadata alone: commits, branches, tags, rollbacks, statistics, run tokens. No files exist.
Snapshots are numbered from 1 in the order of their commits, and a snapshot's sequence number is its id."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID, uuid4

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, SnapshotLogEntry, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.statistics import PartitionStatisticsFile, StatisticsFile
from pyiceberg.types import LongType, NestedField

from lakehouse_assets.commit.tokens import RunToken, token_property

DAY = 24 * 60 * 60 * 1000
NOW = 1_700_000_000_000
"""In epoch ms. Commits are told by how many days before it they were made."""


@dataclass
class History:
    """One table's, as it grows. Times are days before NOW."""

    location: str = "file:///t"
    uuid: UUID = field(default_factory=uuid4)
    snapshots: list[Snapshot] = field(default_factory=list)
    refs: dict[str, SnapshotRef] = field(default_factory=dict)
    log: list[SnapshotLogEntry] = field(default_factory=list)
    properties: dict[str, str] = field(default_factory=dict)
    statistics: list[StatisticsFile] = field(default_factory=list)
    partition_statistics: list[PartitionStatisticsFile] = field(default_factory=list)

    def commit(self, ago: float = 0, *, branch: str = MAIN_BRANCH, run: str | None = None, **said: str) -> int:
        """A new head of the branch. run: the token of the run that published it. said: more of its summary."""
        number, parent = len(self.snapshots) + 1, self.refs.get(branch)
        self.snapshots.append(
            Snapshot(
                snapshot_id=number,
                parent_snapshot_id=parent.snapshot_id if parent else None,
                sequence_number=number,
                timestamp_ms=NOW - int(ago * DAY),
                manifest_list=f"{self.location}/metadata/snap-{number}.avro",
                summary=Summary(Operation.APPEND, **{"added-records": "1", "total-records": str(number), **said}),
                schema_id=0,
            )
        )
        self.point(branch, number, ago)
        if run:
            self.properties |= token_property(RunToken(run, datetime.fromtimestamp(NOW / 1000, UTC)), number)
        return number

    def commits(self, count: int, *, youngest: float = 0, apart: float = 1) -> list[int]:
        """So many on main, oldest first, as many days apart as told."""
        return [self.commit(youngest + apart * (count - 1 - n)) for n in range(count)]

    def point(self, branch: str, snapshot_id: int, ago: float = 0, **retention: int) -> None:
        """Set a branch, as a rollback does it with main. retention: of the ref, else it stays as it was."""
        old = self.refs.get(branch)
        kept = old.model_dump(exclude={"snapshot_id"}) if old and not retention else {}
        fields = {"snapshot_ref_type": SnapshotRefType.BRANCH, **kept, **retention, "snapshot_id": snapshot_id}
        self.refs[branch] = SnapshotRef(**fields)
        if branch == MAIN_BRANCH:
            self.log.append(SnapshotLogEntry(snapshot_id=snapshot_id, timestamp_ms=NOW - int(ago * DAY)))

    def tag(self, name: str, snapshot_id: int, max_ref_age_ms: int | None = None) -> None:
        self.refs[name] = SnapshotRef(
            snapshot_id=snapshot_id, snapshot_ref_type=SnapshotRefType.TAG, max_ref_age_ms=max_ref_age_ms
        )

    def analyze(self, snapshot_id: int) -> None:
        """Statistics of both kinds."""
        path = f"{self.location}/metadata/{snapshot_id}"
        common = {"snapshot_id": snapshot_id, "file_size_in_bytes": 1}
        self.statistics.append(
            StatisticsFile(statistics_path=f"{path}.stats", file_footer_size_in_bytes=1, blob_metadata=[], **common)
        )
        self.partition_statistics.append(PartitionStatisticsFile(statistics_path=f"{path}.parquet", **common))

    @property
    def metadata(self) -> TableMetadata:
        schema = Schema(NestedField(1, "n", LongType()))
        empty = new_table_metadata(schema, PartitionSpec(), UNSORTED_SORT_ORDER, self.location, table_uuid=self.uuid)
        main = self.refs.get(MAIN_BRANCH)
        return empty.model_copy(
            update={
                "snapshots": list(self.snapshots),
                "refs": dict(self.refs),
                "snapshot_log": list(self.log),
                "properties": dict(self.properties),
                "statistics": list(self.statistics),
                "partition_statistics": list(self.partition_statistics),
                "current_snapshot_id": main.snapshot_id if main else None,
                "last_sequence_number": len(self.snapshots),
                "last_updated_ms": max((s.timestamp_ms for s in self.snapshots), default=NOW),
            }
        )


def current_at(metadata: TableMetadata, at_ms: int) -> int | None:
    """What time travel finds, by the rule of the spec that PyIceberg and Iceberg's Java share: the last entry of the
    snapshot log that is not later."""
    return next((entry.snapshot_id for entry in reversed(metadata.snapshot_log) if entry.timestamp_ms <= at_ms), None)
