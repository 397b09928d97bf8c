"""Compaction without a JVM, end to end on real catalogs: rows stay, files go down, the table's properties are kept.
What others commit meanwhile is in test_landing.py."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from datetime import date
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.expressions import EqualTo
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform, TruncateTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    DoubleType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
)

from lakehouse_assets.declare.options import RowProof
from lakehouse_assets.maintenance.rewrite import compact as rewriting
from lakehouse_assets.maintenance.rewrite.compact import Outcome
from lakehouse_assets.maintenance.rewrite.plan import RewriteTask
from lakehouse_assets.wire.work import Digest
from tests.support.forks import SCHEMA, SPEC, CountingIO, Daily, daily_rows
from tests.support.outsiders import (
    commit_deletes,
    commit_file,
    equality_deletes,
    live,
    live_deletes,
    multiset,
    position_deletes,
)
from tests.support.rewrites import compacted, rewrite_tasks

DAYS = ("2013-01-01", "2013-01-02", "2013-01-03")


def create(
    catalog: Catalog,
    schema: Schema = SCHEMA,
    spec: PartitionSpec | None = None,
    order: SortOrder | None = None,
    properties: dict[str, str] | None = None,
) -> Daily:
    catalog.create_namespace_if_not_exists("nyc")
    identifier = f"nyc.table_{uuid4().hex[:8]}"
    catalog.create_table(
        identifier,
        schema,
        partition_spec=spec or PartitionSpec(),
        sort_order=order or SortOrder(order_id=0),
        properties=properties or {},
    )
    return Daily(catalog, identifier)


@pytest.fixture
def whole(catalog: Catalog) -> Daily:
    """A table without partitions."""
    return create(catalog)


def test_twenty_small_files_become_one_and_no_row_changes(whole: Daily) -> None:
    for n in range(20):
        whole.append(daily_rows(DAYS[n % 3], carrier=f"A{n}", each=3))
    before, history = multiset(whole.table), len(whole.table.snapshots())

    report = compacted(whole)

    (partition,) = report.partitions
    assert (partition.partition, partition.outcome, partition.reason) == ("", Outcome.LANDED, "")
    assert (partition.files_before, partition.files_after) == (20, 1)
    assert partition.proof.holds
    assert partition.proof.before.rows == 60
    assert partition.bytes_after < partition.bytes_before
    assert len(live(whole.table)) == 1
    assert multiset(whole.table) == before
    assert whole.table.scan().to_arrow().num_rows == 60
    snapshot = whole.table.current_snapshot()
    assert (snapshot.snapshot_id, snapshot.summary.operation) == (report.snapshot_id, Operation.REPLACE)
    assert (snapshot.summary["total-records"], snapshot.summary["total-data-files"]) == ("60", "1")
    assert len(whole.table.snapshots()) == history + 1


def test_a_proof_by_counts_reads_nothing_back(whole: Daily, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(20):
        whole.append(daily_rows(DAYS[n % 3], carrier=f"A{n}"))
    before, reads, read = multiset(whole.table), [], rewriting.read
    monkeypatch.setattr(rewriting, "read", lambda *of: reads.append(1) or read(*of))
    (partition,) = compacted(whole, proof=RowProof.COUNTS).partitions
    assert len(reads) == 1
    assert (partition.proof.before, partition.proof.after) == (Digest(20), Digest(20))
    assert multiset(whole.table) == before


def test_a_proof_by_counts_finds_a_row_that_is_lost(whole: Daily, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(20):
        whole.append(daily_rows(DAYS[n % 3], carrier=f"A{n}"))
    monkeypatch.setattr(rewriting, "sort", lambda rows, *_: rows.slice(1))
    report = compacted(whole, proof=RowProof.COUNTS)
    assert [partition.outcome for partition in report.partitions] == [Outcome.UNPROVED]
    assert report.snapshot_id is None


def test_only_the_partitions_that_are_asked_for_and_gain_are_rewritten(daily: Daily) -> None:
    for carrier in ("AA", "BB", "CC"):
        daily.append(daily_rows(*DAYS[:2], carrier=carrier))
    daily.append(daily_rows(DAYS[2]))
    before = multiset(daily.table)
    report = compacted(daily, DAYS[0], DAYS[2], few=3)
    assert [(p.partition, p.outcome) for p in report.partitions] == [(f"day={DAYS[0]}", Outcome.LANDED)]
    assert Counter(e.data_file.partition[0] for e in live(daily.table)) == {15706: 1, 15707: 3, 15708: 1}
    assert multiset(daily.table) == before
    assert compacted(daily, few=4).partitions == (), "three files are too few"
    assert [p.partition for p in compacted(daily, few=3).partitions] == [f"day={DAYS[1]}"]
    head = daily.table.current_snapshot().snapshot_id
    again = compacted(daily)
    assert (again.partitions, again.snapshot_id) == ((), None)
    assert daily.table.current_snapshot().snapshot_id == head


def test_a_table_without_snapshots_has_nothing_to_rewrite(whole: Daily) -> None:
    assert compacted(whole).partitions == ()


def test_only_manifests_that_may_list_the_partitions_are_read(catalog_properties: dict[str, str]) -> None:
    io = {"py-io-impl": "tests.support.forks.CountingIO"}
    daily = Daily.create(load_catalog("lake", **{**catalog_properties, **io}))
    for day in DAYS:
        for carrier in ("AA", "BB"):
            daily.append(daily_rows(day, carrier=carrier))
    CountingIO.manifests_read.clear()
    assert len(rewrite_tasks(daily, DAYS[1])) == 1
    assert len(CountingIO.manifests_read) == 2


def test_partitions_beyond_pythons_calendar_are_left_to_spark(daily: Daily) -> None:
    """Spark writes days of the year 10000 and later."""
    for carrier in ("AA", "BB"):
        daily.append(daily_rows(DAYS[0], carrier=carrier))
    days = 2_932_897 + 5
    moved = pa.table({"day": pa.array([days], pa.int32()).cast(pa.date32()), "carrier": ["CC"], "flights": [1]})
    for _ in range(2):
        commit_file(daily.table, moved, Record(days))
    report = compacted(daily)
    assert report.needs_spark == ("it is a day that Python's calendar lacks",)
    assert (report.partitions, report.snapshot_id) == ((), None)
    assert [p.partition for p in compacted(daily, DAYS[0]).landed] == [f"day={DAYS[0]}"]


def test_files_with_deleted_rows_are_rewritten_however_large_and_few(catalog: Catalog) -> None:
    table = create(catalog, spec=SPEC, properties={"write.target-file-size-bytes": "100"})
    table.append(daily_rows(*DAYS, each=4))
    (path,) = (e.data_file.file_path for e in live(table.table) if e.data_file.partition[0] == 15706)
    commit_deletes(table.table, position_deletes(table.table, {path: [1, 2]}))
    before = multiset(table.table)
    (partition,) = compacted(table).partitions
    assert (partition.partition, partition.outcome) == (f"day={DAYS[0]}", Outcome.LANDED)
    assert partition.proof.before.rows == 2
    assert multiset(table.table) == before
    assert not live_deletes(table.table)


def test_new_files_come_near_the_target(catalog: Catalog) -> None:
    """Neither one of all, nor full ones and a fragment."""
    table = create(catalog, properties={"write.target-file-size-bytes": "20000"})
    noise = random.Random(7)
    for _ in range(10):
        texts = [noise.randbytes(60).hex() for _ in range(80)]
        rows = [{"day": date(2013, 1, 1), "carrier": text, "flights": n} for n, text in enumerate(texts)]
        table.append(pa.Table.from_pylist(rows, schema=ARROW))
    before, count = multiset(table.table), sum(e.data_file.file_size_in_bytes for e in live(table.table)) / 20_000
    assert compacted(table).partitions[0].outcome is Outcome.LANDED
    sizes = [e.data_file.file_size_in_bytes for e in live(table.table)]
    assert 0.7 * 20_000 <= min(sizes) <= max(sizes) <= 1.5 * 20_000
    assert abs(len(sizes) - count) < 2
    assert multiset(table.table) == before


# What a new file is like


EVERYTHING = Schema(
    NestedField(1, "n", LongType()),
    NestedField(2, "name", StringType()),
    NestedField(3, "price", DecimalType(20, 2)),
    NestedField(4, "at", TimestampType()),
    NestedField(5, "blob", BinaryType()),
    NestedField(6, "ratio", DoubleType()),
    NestedField(7, "point", StructType(NestedField(8, "x", LongType()), NestedField(9, "y", LongType()))),
    NestedField(10, "tags", ListType(11, StringType(), element_required=False)),
    NestedField(12, "counts", MapType(13, StringType(), 14, LongType(), value_required=False)),
)
ROWS: list[dict[str, Any]] = [
    {
        "n": n,
        "name": f"name {n % 3}",
        "point": {"x": n, "y": None} if n % 2 else None,
        "tags": ["a", None][: n % 3] if n % 4 else None,
        "counts": [("a", n), ("b", None)] if n % 3 else [],
        "blob": bytes([n]) * n,
        "ratio": n / 3,
    }
    for n in range(8)
]
ORDER = SortOrder(
    SortField(2, IdentityTransform(), SortDirection.DESC, NullOrder.NULLS_LAST),
    SortField(1, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_FIRST),
)


def everything(catalog: Catalog, **options: Any) -> Daily:
    """Two files of eight rows with columns of many kinds."""
    table = create(catalog, EVERYTHING, **options)
    for _ in range(2):
        table.append(pa.Table.from_pylist(ROWS, schema=table.table.schema().as_arrow()))
    return table


def parquet(table: Table, file: DataFile) -> pq.ParquetFile:
    return pq.ParquetFile(pa.BufferReader(table.io.new_input(file.file_path).open().read()))


def new_files(table: Daily) -> list[DataFile]:
    """The files that a compaction leaves of the table's."""
    (partition,) = compacted(table).partitions
    assert (partition.outcome, partition.reason) == (Outcome.LANDED, "")
    return [e.data_file for e in live(table.table)]


def test_new_files_are_sorted_and_say_so(catalog: Catalog) -> None:
    table = everything(catalog, order=ORDER)
    (file,) = new_files(table)
    rows = parquet(table.table, file).read(["name", "n"]).to_pylist()
    assert rows == sorted(sorted(rows, key=lambda r: r["n"]), key=lambda r: r["name"], reverse=True)
    assert file.sort_order_id == table.table.sort_order().order_id != 0


def test_files_of_an_unsorted_table_keep_the_order_of_their_rows(catalog: Catalog) -> None:
    table = everything(catalog)
    (file,) = new_files(table)
    assert parquet(table.table, file).read(["n"])["n"].to_pylist() == [*range(8), *range(8)]
    assert file.sort_order_id == 0


def test_new_files_follow_the_tables_properties(catalog: Catalog) -> None:
    properties = {
        "write.parquet.compression-codec": "gzip",
        "write.parquet.row-group-limit": "3",
        "write.metadata.metrics.column.name": "none",
        "write.object-storage.enabled": "true",
    }
    table = everything(catalog, properties=properties)
    (file,) = new_files(table)
    metadata = parquet(table.table, file).metadata
    assert {metadata.row_group(n).column(0).compression for n in range(metadata.num_row_groups)} == {"GZIP"}
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [3, 3, 3, 3, 3, 1]
    assert 2 not in file.null_value_counts
    assert file.null_value_counts[1] == 0
    assert file.record_count == 16
    assert file.file_size_in_bytes == len(table.table.io.new_input(file.file_path))
    assert file.file_path.startswith(f"{table.table.location()}/data/")
    assert file.content is DataFileContent.DATA


def test_row_groups_of_so_many_bytes_are_kept(catalog: Catalog) -> None:
    """PyIceberg's writer knows their rows only, and warns."""
    table = everything(catalog)
    with table.table.transaction() as transaction:
        transaction.set_properties({"write.parquet.row-group-size-bytes": "400"})
    (file,) = new_files(table)
    assert parquet(table.table, file).metadata.num_row_groups > 2


def test_a_partition_of_two_fields_of_one_column_keeps_its_tuple(catalog: Catalog) -> None:
    """PyIceberg's writer refuses these."""
    spec = PartitionSpec(
        PartitionField(2, 1000, IdentityTransform(), "name"),
        PartitionField(2, 1001, TruncateTransform(1), "first"),
    )
    table = create(catalog, EVERYTHING, spec)
    for at in range(3):
        rows = pa.Table.from_pylist([{"n": at, "name": "a/b=c d"}, {"n": 1, "name": "a/b=c d"}])
        add_file(table, rows)
    before = multiset(table.table)
    (file,) = new_files(table)
    assert list(file.partition._data) == ["a/b=c d", "a"]
    assert "name=a%2Fb%3Dc+d/first=a/" in file.file_path
    assert multiset(table.table) == before


ARROW = daily_rows(DAYS[0]).schema


def add_file(table: Daily, rows: pa.Table) -> None:
    path = table.table.location_provider().new_data_location(f"{uuid4()}.parquet")
    with table.table.io.new_output(path).create() as stream:
        pq.write_table(rows, stream)
    table.table.add_files([path])


def test_files_written_before_the_table_evolved_are_read_as_it_is_now(catalog: Catalog) -> None:
    table = everything(catalog)
    with table.table.update_schema() as update:
        update.rename_column("name", "label")
        update.add_column("late", StringType())
        update.add_column(("point", "z"), LongType())
    table.append(pa.Table.from_pylist([{"n": 9, "late": "x"}], schema=table.table.schema().as_arrow()))
    before = table.table.scan().to_arrow().sort_by("n").to_pylist()
    (file,) = new_files(table)
    assert table.table.scan().to_arrow().sort_by("n").to_pylist() == before
    assert "late" in parquet(table.table, file).schema_arrow.names


# What is left to Spark


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"properties": {"write.parquet.bloom-filter-enabled.column.n": "true"}}, "bloom filters"),
        ({"properties": {"write.parquet.page-version": "v2"}}, r"property write.parquet.page-version"),
        ({"properties": {"write.format.default": "orc"}}, "write.format.default is orc"),
        ({"properties": {"write.parquet.compression-codec": "lzo"}}, "compression-codec is lzo"),
        ({"properties": {"write.location-provider.impl": "a.B"}}, "write.location-provider.impl"),
        ({"order": SortOrder(SortField(1, BucketTransform(4)))}, r"sorted by bucket\[4\]\(n\)"),
    ],
    ids=str,
)
def test_what_pyarrows_writer_cannot_honour_needs_spark(catalog: Catalog, options: dict[str, Any], says: str) -> None:
    table = everything(catalog, **{name: value for name, value in options.items() if name != "properties"})
    with table.table.transaction() as transaction:
        transaction.set_properties(options.get("properties", {}))
    head = table.table.current_snapshot().snapshot_id
    report = compacted(table)
    assert (report.partitions, report.snapshot_id) == ((), None)
    (reason,) = report.needs_spark
    assert re.search(says, reason), reason
    assert table.table.current_snapshot().snapshot_id == head


def test_equality_deletes_and_an_old_spec_leave_all_that_is_asked_for_to_spark(daily: Daily) -> None:
    for carrier in ("AA", "BB"):
        daily.append(daily_rows(*DAYS[:2], carrier=carrier))
    first = next(e.data_file.partition for e in live(daily.table) if e.data_file.partition[0] == 15706)
    commit_deletes(daily.table, equality_deletes(daily.table, "carrier", ["AA"], first))
    before = multiset(daily.table)
    report = compacted(daily)
    assert (report.needs_spark, report.partitions) == (("equality deletes apply to its files",), ())
    assert [p.outcome for p in compacted(daily, DAYS[1]).partitions] == [Outcome.LANDED]
    assert multiset(daily.table) == before
    with daily.table.update_spec() as update:
        update.add_field("carrier", IdentityTransform(), "carrier")
    assert "its files are of the old partition spec 0" in compacted(daily).needs_spark


# Rewrites that change rows


def lose(rows: pa.Table) -> pa.Table:
    return rows.slice(1)


def double(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows, rows.slice(0, 1)])


def double_a_pair_and_lose_one(rows: pa.Table) -> pa.Table:
    """As many rows, and the same xor of hashes, as before."""
    return pa.concat_tables([rows.slice(2), rows.slice(2, 1), rows.slice(2, 1)])


def altered(column: str, change: Callable[[Any], Any], at: int = 1) -> Callable[[pa.Table], pa.Table]:
    def fault(rows: pa.Table) -> pa.Table:
        values = rows.to_pylist()
        values[at] = values[at] | {column: change(values[at][column])}
        return pa.Table.from_pylist(values, schema=rows.schema)

    return fault


def move_a_null(rows: pa.Table) -> pa.Table:
    """Of two columns of one type, and from one row to the next."""
    values = rows.to_pylist()
    values[1]["counts"], values[3]["counts"] = values[3]["counts"], values[1]["counts"]
    return pa.Table.from_pylist(values, schema=rows.schema)


def swap(rows: pa.Table) -> pa.Table:
    values = rows.to_pylist()
    values[0]["name"], values[1]["name"] = values[1]["name"], values[0]["name"]
    return pa.Table.from_pylist(values, schema=rows.schema)


FAULTS: dict[str, Callable[[pa.Table], pa.Table]] = {
    "a row lost": lose,
    "a row doubled": double,
    "a row doubled and others lost": double_a_pair_and_lose_one,
    "all rows lost": lambda rows: rows.slice(0, 0),
    "a number altered": altered("n", lambda n: n + 1),
    "a value nulled": altered("name", lambda _: None),
    "the last bit of a float": altered("ratio", lambda ratio: ratio + 2**-52),
    "a null struct becomes a struct of nulls": altered("point", lambda _: {"x": None, "y": None}, at=2),
    "a struct of nulls becomes null": altered("point", lambda _: None),
    "a nested null": altered("point", lambda point: point | {"y": 0}),
    "a null in a list": altered("tags", lambda _: [None], at=1),
    "a null list becomes empty": altered("tags", lambda _: [], at=4),
    "an empty map becomes null": altered("counts", lambda _: None, at=3),
    "a null in a map": altered("counts", lambda counts: [(k, 0) for k, _ in counts]),
    "a byte": altered("blob", lambda _: b"\x02"),
    "values of two rows swapped": swap,
    "a null moved to another row": move_a_null,
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_rewrite_that_changes_a_row_never_lands(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, fault: Callable[[pa.Table], pa.Table]
) -> None:
    table = everything(catalog)
    before, head = multiset(table.table), table.table.current_snapshot().snapshot_id
    write = rewriting.write
    monkeypatch.setattr(rewriting, "write", lambda m, io, rows, size, task: write(m, io, fault(rows), size, task))
    report = compacted(table)
    assert [p.outcome for p in report.partitions] == [Outcome.UNPROVED]
    assert report.faults
    assert "the rewrite changed rows" in report.partitions[0].reason
    assert report.snapshot_id is None
    assert table.table.current_snapshot().snapshot_id == head
    assert multiset(table.table) == before
    monkeypatch.setattr(rewriting, "write", write)
    assert [p.outcome for p in compacted(table).partitions] == [Outcome.LANDED]
    assert multiset(table.table) == before


def test_a_file_that_was_damaged_after_it_was_written_never_lands(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof reads storage, not what the writer was given."""
    table = everything(catalog)
    write = rewriting.write

    def damaged(metadata: Any, io: Any, rows: pa.Table, size: int, task: RewriteTask) -> list[DataFile]:
        files = write(metadata, io, rows, size, task)
        other = write(metadata, io, lose(rows), size, task)
        content = io.new_input(other[0].file_path).open().read()
        with io.new_output(files[0].file_path).create(overwrite=True) as stream:
            stream.write(content)
        return files

    monkeypatch.setattr(rewriting, "write", damaged)
    assert [p.outcome for p in compacted(table).partitions] == [Outcome.UNPROVED]


def test_rows_that_were_not_read_are_missed(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides of the proof lack them; the metadata of the files does not."""
    table = everything(catalog)
    read = rewriting.read

    def of_two_files(metadata: Any, io: Any, tasks: list[FileScanTask]) -> pa.Table:
        return read(metadata, io, tasks).slice(1 if len(tasks) == 2 else 0)

    monkeypatch.setattr(rewriting, "read", of_two_files)
    (partition,) = compacted(table).partitions
    assert partition.outcome is Outcome.UNPROVED
    assert "rows according to their metadata" in partition.reason


def test_a_file_that_vanishes_while_it_is_read_drops_its_partition_only(
    daily: Daily, monkeypatch: pytest.MonkeyPatch
) -> None:
    for carrier in ("AA", "BB"):
        daily.append(daily_rows(*DAYS[:2], carrier=carrier))
    read = rewriting.read
    gone: list[str] = []

    def vanishing(metadata: TableMetadata, io: FileIO, tasks: list[FileScanTask]) -> pa.Table:
        if not gone:
            gone.append(tasks[0].file.file_path)
            daily.table.io.delete(gone[0])
        return read(metadata, io, tasks)

    monkeypatch.setattr(rewriting, "read", vanishing)
    one, two = compacted(daily).partitions
    assert (one.outcome, two.outcome) == (Outcome.DROPPED, Outcome.LANDED)
    assert gone[0].rpartition("/")[2] in one.reason


def test_a_file_of_which_all_rows_are_deleted_goes_with_the_others(daily: Daily) -> None:
    """PyIceberg reads it as text of another type than files with rows."""
    daily.append(daily_rows(DAYS[0], each=1))
    gone = live(daily.table)[0].data_file.file_path
    daily.append(daily_rows(DAYS[0], carrier="BB", each=1))
    commit_deletes(daily.table, position_deletes(daily.table, {gone: [0]}))
    before = multiset(daily.table)
    report = compacted(daily)
    assert [(p.outcome, p.reason) for p in report.partitions] == [(Outcome.LANDED, "")]
    assert multiset(daily.table) == before
    assert len(live(daily.table)) == 1


def test_a_file_that_came_back_keeps_the_rows_that_an_older_delete_names(daily: Daily) -> None:
    """PyIceberg applies the position deletes of all files that it reads together to each of them."""
    for carrier in ("AA", "BB"):
        daily.append(daily_rows(DAYS[0], carrier=carrier, each=2))
    stays, back = [e.data_file.file_path for e in sorted(live(daily.table), key=lambda e: e.sequence_number)]
    commit_deletes(daily.table, position_deletes(daily.table, {stays: [0], back: [0]}))
    daily.table.delete(EqualTo("carrier", "BB"))
    daily.table.add_files([back])
    before = multiset(daily.table)
    assert before.total() == 1 + 2
    assert [p.outcome for p in compacted(daily).partitions] == [Outcome.LANDED]
    assert multiset(daily.table) == before


def test_a_partition_that_can_not_be_rewritten_is_a_fault_and_keeps_no_other_from_landing(daily: Daily) -> None:
    for carrier in ("AA", "BB"):
        daily.append(daily_rows(*DAYS[:2], carrier=carrier))
    torn = next(e.data_file for e in live(daily.table) if e.data_file.partition == Record(15706))
    with daily.table.io.new_output(torn.file_path).create(overwrite=True) as stream:
        stream.write(b"x" * torn.file_size_in_bytes)
    report = compacted(daily)
    assert [p.outcome for p in report.partitions] == [Outcome.FAILED, Outcome.LANDED]
    assert [p.partition for p in report.faults] == ["day=2013-01-01"]
