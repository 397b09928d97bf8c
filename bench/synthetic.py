"""Tables and forks that are large by their number of files: all metadata, with almost no rows.
It runs in a process of its own, so that its memory does not count as publishing's."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _SnapshotProducer
from pyiceberg.typedef import Record

from lakehouse_assets.commit.fork import write_fork_base
from lakehouse_assets.commit.tokens import TOKEN
from lakehouse_assets.wire.receipts import Receipt
from tests.support.forks import SCHEMA, SPEC, daily_rows

FIRST_DAY = date(2013, 1, 1)
TABLE = "nyc.synthetic"


def properties(home: Path) -> dict[str, str]:
    """PyIceberg's properties of the SQLite catalog in ``home``."""
    return {"type": "sql", "uri": f"sqlite:///{home}/catalog.db", "warehouse": (home / "warehouse").as_uri()}


def days(count: int) -> list[str]:
    """The first ``count`` partition keys."""
    return [(FIRST_DAY + timedelta(days=n)).isoformat() for n in range(count)]


def create(home: Path) -> Table:
    """An empty daily table in a new catalog."""
    (home / "warehouse").mkdir(parents=True)
    catalog = load_catalog("lake", **properties(home))
    catalog.create_namespace("nyc")
    return catalog.create_table(TABLE, SCHEMA, partition_spec=SPEC)


def stage(target: Table, token: str, chunks: Sequence[str], files_each: int, receipts: Path) -> None:
    """Stage one chunk for each day, ``files_each`` files each; the receipts go to a file, one a line.

    All files are hard links to one small Parquet file: publish finds that they exist, and nothing reads them.
    """
    folder = Path(target.location().removeprefix("file://"), "data", token)
    folder.mkdir(parents=True)
    parquet = folder / "rows.parquet"
    pq.write_table(daily_rows(chunks[0]), parquet)
    base = write_fork_base(target, token).location
    private = load_catalog("stage", type="sql", uri="sqlite:///:memory:", warehouse="file:///nonexistent")
    private.create_namespace("forks")
    with receipts.open("w") as lines:
        for chunk, day in enumerate(chunks):
            files = list(_links(parquet, day, files_each))
            lines.write(_stage_one(private, base, token, chunk, day, files).to_json() + "\n")


def _stage_one(private: Catalog, base: str, token: str, chunk: int, day: str, files: list[DataFile]) -> Receipt:
    fork = private.register_table(f"forks.chunk_{chunk}", base)
    with fork.transaction() as tx, tx.update_snapshot({TOKEN: token}).fast_append() as append:
        for file in files:
            append.append_data_file(file)
    return Receipt(
        table=TABLE,
        token=token,
        chunk=chunk,
        keys=(day,),
        work="1",
        fork_base=base,
        metadata_location=fork.metadata_location,
        rows=sum(file.record_count for file in files),
        stage_seconds=0.0,
        created_at=datetime.now(UTC).isoformat(),
        worker="synthetic",
    )


def _links(parquet: Path, day: str, count: int) -> Iterator[DataFile]:
    for n in range(count):
        link = parquet.with_name(f"{day}-{n}.parquet")
        link.hardlink_to(parquet)
        yield _entry(link.as_uri(), day, parquet.stat().st_size)


def _entry(path: str, day: str, size: int) -> DataFile:
    epoch_day = (date.fromisoformat(day) - date(1970, 1, 1)).days
    bound = epoch_day.to_bytes(4, "little", signed=True)
    entry = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(epoch_day),
        record_count=1,
        file_size_in_bytes=size,
        column_sizes={1: 40, 2: 40, 3: 40},
        value_counts={1: 1, 2: 1, 3: 1},
        null_value_counts={1: 0, 2: 0, 3: 0},
        nan_value_counts={},
        lower_bounds={1: bound},
        upper_bounds={1: bound},
        key_metadata=None,
        split_offsets=[4],
        equality_ids=None,
        sort_order_id=0,
    )
    entry.spec_id = 0
    return entry


class _Manifests(_SnapshotProducer["_Manifests"]):
    """One snapshot of many manifests. listings: of each manifest the days of its files."""

    def __init__(self, table: Table, listings: Sequence[Sequence[str]]) -> None:
        self._table, self._listings = table, listings
        self.transaction = table.transaction()
        super().__init__(Operation.APPEND, self.transaction, table.io)

    def _deleted_entries(self) -> list[ManifestEntry]:
        return []

    def _existing_manifests(self) -> list[ManifestFile]:
        return [self._manifest(listing) for listing in self._listings]

    def _manifest(self, listing: Sequence[str]) -> ManifestFile:
        with self.new_manifest_writer(self.spec(0)) as writer:
            for n, day in enumerate(listing):
                writer.add(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED,
                        snapshot_id=self._snapshot_id,
                        sequence_number=None,
                        file_sequence_number=None,
                        data_file=_entry(f"{self._table.location()}/data/{day}/{n}-{uuid4()}.parquet", day, 10_000_000),
                    )
                )
        return writer.to_manifest_file()


def fill(target: Table, listings: Sequence[Sequence[str]]) -> None:
    """Commit a manifest for each listing, the days of its files. The files themselves do not exist."""
    producer = _Manifests(target, listings)
    producer.commit()
    producer.transaction.commit_transaction()


def append(target: Table, manifests: int, files_each: int) -> None:
    """Append as an outsider does: so many commits with one manifest each. The files themselves do not exist."""
    for day in days(manifests):
        with target.transaction() as tx, tx.update_snapshot().fast_append() as commit:
            for n in range(files_each):
                commit.append_data_file(
                    _entry(f"{target.location()}/data/{day}/{n}-{uuid4()}.parquet", day, 10_000_000)
                )


def main(kind: str, home: Path, count: int, files_each: int) -> None:
    """kind ``chunks``: stage ``count`` chunks twice (runs a and b). ``large``: a table of ``count`` manifests of a day
    each, what years of daily appends leave, and one day staged. ``scattered``: of ``count`` manifests of all days each,
    what late rows leave. ``more``: ``count`` manifests more for a table that is there. Receipts lie in ``home``."""
    if kind == "more":
        append(load_catalog("lake", **properties(home)).load_table(TABLE), count, files_each)
        return
    target = create(home)
    if kind == "chunks":
        for token in ("a", "b"):
            stage(target, token, days(count), files_each, home / f"{token}.receipts")
    elif kind == "scattered":
        fill(target, [days(files_each)] * count)
    else:
        fill(target, [[day] * files_each for day in days(count)])
        target.refresh()
        stage(target, "a", [days(count)[count // 2]], 1, home / "a.receipts")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
