"""What a merge reads and moves of its target, by the executed plan and Iceberg's scan report, beside a plain MERGE's.
What a merge does to rows is in test_merge.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from uuid import uuid4

import pytest
from pyiceberg.table.metadata import TableMetadata
from pyspark.sql import DataFrame, Row, SparkSession

from lakehouse_assets.declare.modes import Rewrites
from lakehouse_assets.environment.catalog_in_spark import spark_catalogs
from lakehouse_assets.wire.work import Merged, MergeWork
from lakehouse_assets.worker import changes
from lakehouse_assets.worker import merge as merging
from lakehouse_assets.worker.changes import facts_of
from lakehouse_assets.worker.merge import Fork, merge
from lakehouse_assets.worker.session import configure
from tests.support.merges import REWRITES
from tests.support.spark_plans import Scan, kind_of_last_write, scans_of_last_write
from tests.support.spark_tables import loaded
from tests.support.twins import twins

pytestmark = pytest.mark.spark
DAYS, EACH = 30, 10
"""Of the target: rows have the ids from 0, EACH a day."""
FEW = (15, 155, DAYS * EACH)
"""Two rows that are there, on two days, and a new one on a day of its own."""
BUCKETS = 8


@dataclass(frozen=True)
class Target:
    """A table of one snapshot, in a worker's own catalog. files: how many it has."""

    spark: SparkSession
    name: str
    base: TableMetadata
    files: int

    def merge(self, ids: Sequence[int], keys: tuple[str, ...], *, only_inserts: bool = False) -> Merged:
        """Merge a change of each of these rows, which adds 1000 to its ``n``."""
        return self.merge_rows(self.changes(ids), MergeWork(keys, only_inserts=only_inserts))

    def changes(self, ids: Sequence[int]) -> DataFrame:
        listed = ", ".join(f"({id}L)" for id in ids)
        return self.spark.sql(f"SELECT id, {day('id')}, id + 1000 AS n FROM VALUES {listed} AS (id)")

    def merge_rows(self, rows: DataFrame, work: MergeWork) -> Merged:
        return merge(self.spark, Fork(self.name, self.base, "token", "demo.rows"), rows, work, {})[0]

    def scans(self) -> list[Scan]:
        return scans_of_last_write(self.spark, self.name)

    def commits(self) -> list[tuple[str, str, int]]:
        """Of each since the base: its operation, the run that it names, and how many files it added."""
        found = self.spark.table(f"{self.name}.snapshots").orderBy("committed_at").collect()
        new = [row for row in found if row.snapshot_id != self.base.current_snapshot_id]
        return [
            (row.operation, row.summary.get("lakehouse.token", ""), int(row.summary["added-data-files"])) for row in new
        ]

    def rows(self) -> dict[int, int]:
        found = self.spark.table(self.name).collect()
        rows = {row.id: row.n for row in found}
        assert len(rows) == len(found), "a key that is there was inserted"
        return rows


Create = Callable[..., Target]


def like(target: Target, rows: str | DataFrame) -> Target:
    """A table of these rows beside a target. rows: perhaps as the SELECT that gives them."""
    spark, name = target.spark, f"{target.name}_like"
    frame = spark.sql(rows) if isinstance(rows, str) else rows
    (place,) = spark.sql(f"SELECT file FROM {target.name}.metadata_log_entries LIMIT 1").collect()
    created = frame.writeTo(name).using("iceberg").option("location", f"{place.file.rpartition('/metadata/')[0]}_like")
    properties = {"format-version": "2", "write.merge.mode": str(Rewrites.MERGE_ON_READ)}
    for key, value in properties.items():
        created = created.tableProperty(key, value)
    created.create()
    return Target(spark, name, loaded(spark, name).metadata, 1)


def day(id: str) -> str:
    return f"date_add(DATE'2024-01-01', CAST({id} DIV {EACH} AS INT)) AS day"


@pytest.fixture(scope="module")
def create(jvm: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Create:
    """Creates a target. partitioned: the terms, "" for a file for each day without partitions. days: with rows."""
    folder = tmp_path_factory.mktemp("targets").as_uri()
    properties = {"type": "sql", "uri": "sqlite://", "warehouse": folder}
    spark = configure(jvm.newSession(), spark_catalogs(properties))
    spark.sql("CREATE NAMESPACE stage.targets")

    def create(partitioned: str, rewrites: Rewrites = Rewrites.COPY_ON_WRITE, days: int = DAYS) -> Target:
        table = uuid4().hex
        name = f"stage.targets.t{table}"
        terms = f"PARTITIONED BY ({partitioned})" if partitioned else ""
        spark.sql(
            f"CREATE TABLE {name} (id bigint, day date, n bigint) USING iceberg {terms} LOCATION '{folder}/{table}' "
            f"TBLPROPERTIES ('format-version' = '2', 'write.merge.mode' = '{rewrites}', "
            f"'write.distribution-mode' = '{'hash' if partitioned else 'none'}')"
        )
        if days:
            rows = spark.sql(f"SELECT id, {day('id')}, id AS n FROM range({days * EACH})")
            (rows if partitioned else rows.repartitionByRange(days, "id")).writeTo(name).append()
        return Target(spark, name, loaded(spark, name).metadata, spark.table(f"{name}.files").count())

    return create


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merges without the computed condition, and without the settings for a target with buckets."""
    monkeypatch.setattr(merging, "condition", lambda *_: "true")
    monkeypatch.setattr(merging, "BUCKETED", {})


def after(ids: Sequence[int]) -> dict[int, int]:
    """The rows of a target into which changes of these ids were merged."""
    return {id: id for id in range(DAYS * EACH)} | {id: id + 1000 for id in ids}


SOME_FILES = [
    pytest.param("day", ("id", "day"), FEW, 2, id="days, by a key that is listed"),
    pytest.param("day", ("id",), range(40, 270), 23, id="days, by a key in a range"),
    pytest.param("", ("id",), FEW, 2, id="no partitions, by the bounds of files"),
    pytest.param(f"bucket({BUCKETS}, id)", ("id",), FEW, 3, id="buckets"),
]
"""How the target is partitioned, the keys, the ids of the changes, and how many files can have rows of these."""


@pytest.mark.parametrize("rewrites", REWRITES)
@pytest.mark.parametrize(("partitioned", "keys", "ids", "at_most"), SOME_FILES)
def test_a_merge_reads_only_the_files_that_a_change_can_meet(
    create: Create, rewrites: Rewrites, partitioned: str, keys: tuple[str, ...], ids: Sequence[int], at_most: int
) -> None:
    target = create(partitioned, rewrites)
    done = target.merge(ids, keys)
    scans = target.scans()
    assert scans, (target.files, scans)
    assert all(0 < scan.files <= at_most < target.files for scan in scans), (target.files, scans)
    assert all(scan.files + scan.skipped == target.files for scan in scans)
    new = len({*ids} - {*range(DAYS * EACH)})
    assert (done.inserted, done.updated) == (new, len(ids) - new)
    assert target.rows() == after(ids)


@pytest.mark.long("Shows that the tests before can fail.")
@pytest.mark.parametrize("rewrites", REWRITES)
def test_without_the_computed_condition_it_would_read_all_files(
    create: Create, plain: None, rewrites: Rewrites
) -> None:
    target = create("day", rewrites)
    target.merge(FEW, ("id", "day"))
    assert max(scan.files for scan in target.scans()) == target.files == DAYS


def test_an_append_that_leaves_out_what_is_there_reads_only_the_files_that_can_have_it(create: Create) -> None:
    target = create("day")
    assert target.merge(FEW, ("id", "day"), only_inserts=True).inserted == 1
    assert [(scan.files, scan.skipped) for scan in target.scans()] == [(2, DAYS - 2)]
    assert target.rows() == after(()) | {FEW[-1]: FEW[-1] + 1000}


@pytest.mark.parametrize("rewrites", REWRITES)
@pytest.mark.parametrize("days", [0, DAYS], ids=["an empty table", "no file that can have them"])
def test_changes_that_can_meet_no_row_are_appended(create: Create, rewrites: Rewrites, days: int) -> None:
    target = create("day", rewrites, days)
    new = range(DAYS * EACH, DAYS * EACH + 5)
    rows = target.changes([*new, *new, 999]).selectExpr("*", "id = 999 AS gone")
    work = MergeWork(("id", "day"), delete_when="gone")
    fork = Fork(target.name, target.base, "token", "demo.rows")
    done, failed = merge(target.spark, fork, rows, work, {"small": f"n <> {new[2] + 1000}"})
    assert (done.changes, done.left_out, done.matched, done.inserted, done.updated, done.deleted) == (11, 5, 0, 5, 0, 0)
    assert [(check.name, check.rows) for check in failed] == [("small", 1)]
    assert [bound.column for bound in done.bounds] == ["id", "day"]
    assert target.rows() == {id: id for id in range(days * EACH)} | {id: id + 1000 for id in new}
    assert target.commits() == [("append", "token", 1)]
    assert kind_of_last_write(target.spark) == "AppendData"


@pytest.mark.parametrize("mode", ["hash", "range"])
def test_what_is_appended_is_distributed_as_a_merge_distributes_it(
    create: Create, mode: str, request: pytest.FixtureRequest
) -> None:
    target = create("day", days=0)
    # The changes of each day lie in several tasks, as those of a large table do.
    for name, value in {"adaptive.coalescePartitions.enabled": "false", "shuffle.partitions": "4"}.items():
        request.addfinalizer(
            partial(target.spark.conf.set, f"spark.sql.{name}", target.spark.conf.get(f"spark.sql.{name}"))
        )
        target.spark.conf.set(f"spark.sql.{name}", value)
    properties = f"'write.distribution-mode' = 'none', 'write.merge.distribution-mode' = '{mode}'"
    target.spark.sql(f"ALTER TABLE {target.name} SET TBLPROPERTIES ({properties})")
    altered = replace(target, base=loaded(target.spark, target.name).metadata)
    assert altered.merge(range(DAYS * EACH), ("id",)).inserted == DAYS * EACH
    assert altered.rows() == after(range(DAYS * EACH))
    assert [(operation, files) for operation, _, files in altered.commits()] == [("append", DAYS)]


@pytest.mark.parametrize("days", [0, DAYS], ids=["an empty table", "no file that can have them"])
def test_nothing_is_committed_of_deletes_that_can_meet_no_row(create: Create, days: int) -> None:
    target = create("day", days=days)
    rows = target.changes([999]).selectExpr("*", "true AS gone")
    done = target.merge_rows(rows, MergeWork(("id", "day"), delete_when="gone"))
    assert done.is_idle
    assert (done.changes, done.matched) == (1, 0)
    assert target.commits() == []


@pytest.mark.parametrize("rewrites", REWRITES)
@pytest.mark.parametrize(
    ("partitioned", "keys"),
    [(f"bucket({BUCKETS}, id)", ("id",)), (f"bucket({BUCKETS}, id)", ("id", "day"))],
    ids=["by the key", "by one of the keys"],
)
def test_a_target_with_buckets_of_a_key_is_not_moved(
    create: Create, rewrites: Rewrites, partitioned: str, keys: tuple[str, ...]
) -> None:
    target = create(partitioned, rewrites)
    ids = range(DAYS * EACH - 5, DAYS * EACH + 40)  # new rows are in all buckets, also in those that are not read
    target.merge(ids, keys)
    assert [scan.moved for scan in target.scans()] == [None] * len(target.scans())
    assert target.rows() == after(ids)


@pytest.mark.long("Shows that the test before can fail.")
@pytest.mark.parametrize("rewrites", REWRITES)
def test_without_its_settings_a_target_with_buckets_is_moved(
    create: Create, rewrites: Rewrites, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "BUCKETED", {})
    target = create(f"bucket({BUCKETS}, id)", rewrites)
    target.merge(FEW, ("id",))
    assert any(scan.moved is not None for scan in target.scans())


@pytest.mark.parametrize("joined", [False, True], ids=["", "changes that the step has joined"])
def test_rows_that_no_change_can_meet_are_not_moved(
    create: Create, monkeypatch: pytest.MonkeyPatch, *, joined: bool
) -> None:
    monkeypatch.setattr(changes, "LISTED", 0)  # else a condition on the key's values leaves them out
    target = create("day", Rewrites.MERGE_ON_READ)
    rows = target.changes(FEW)
    if joined:  # with rows that Spark takes for 8 EiB
        rows = rows.join(target.spark.createDataFrame([(id,) for id in FEW], "id long"), "id")
    target.merge_rows(rows, MergeWork(("id",)))
    (scan,) = target.scans()
    assert scan.files == DAYS - FEW[0] // EACH, scan
    assert scan.moved is not None, scan
    assert 2 <= scan.moved < 2 * EACH, scan
    assert target.rows() == after(FEW)


@pytest.mark.long("A limit of one line, with many rows.")
def test_more_changes_than_a_filter_can_tell_apart_are_merged_without(
    create: Create, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "LISTED", 0)
    monkeypatch.setattr(merging, "MOST_FILTERED", len(FEW) - 1)
    target = create("day", Rewrites.MERGE_ON_READ)
    target.merge(FEW, ("id",))
    assert [scan.moved for scan in target.scans()] == [DAYS * EACH - FEW[0]]
    assert target.rows() == after(FEW)


def test_keys_of_another_type_than_the_tables_meet_their_rows(create: Create) -> None:
    target = create("day", Rewrites.MERGE_ON_READ)
    rows = target.spark.sql("SELECT 15 AS id, DATE'2024-01-02' AS day, 0L AS n")
    assert rows.schema["id"].dataType.typeName() == "integer"
    done = target.merge_rows(rows, MergeWork(("id",)))
    assert (done.inserted, done.updated) == (0, 1)
    assert target.rows() == after(()) | {15: 0}


def test_keys_of_every_type_that_is_filtered_meet_their_rows(create: Create) -> None:
    target = create("day", Rewrites.MERGE_ON_READ)
    typed = {
        "text": "'k' || id",
        "share": "CAST(id / 3 AS decimal(9, 2))",
        "at": "timestamp_seconds(id)",
        "local": "CAST(timestamp_seconds(id) AS timestamp_ntz)",
        "even": "id % 2 = 0",
        "small": "CAST(id AS int)",
        "day": "date_add(DATE'2024-01-01', CAST(id AS int))",
    }
    columns = ", ".join(f"{value} AS {name}" for name, value in typed.items())
    of_types = like(target, f"SELECT {columns}, 0 AS n FROM range(50)")
    rows = target.spark.sql(f"SELECT {columns}, 1 AS n FROM range(40, 60)")
    done = of_types.merge_rows(rows, MergeWork(tuple(typed)))
    assert (done.inserted, done.updated) == (10, 10)
    assert target.spark.table(of_types.name).count() == 60


@pytest.mark.parametrize("escaped", twins(["true", "false"], "The keys are spelled in either way by one function."))
@pytest.mark.parametrize("key", ["${name}", "it's", r"a\'b", 'a"b', "日本"])
def test_a_key_is_found_whatever_it_is_spelled_like(
    create: Create, key: str, escaped: str, request: pytest.FixtureRequest
) -> None:
    target = create("day", Rewrites.MERGE_ON_READ)
    target.spark.conf.set("spark.sql.parser.escapedStringLiterals", escaped)
    request.addfinalizer(lambda: target.spark.conf.unset("spark.sql.parser.escapedStringLiterals"))
    keyed = target.spark.createDataFrame([(key, 1)], "text string, n int")
    of_text = like(target, keyed)
    done = of_text.merge_rows(keyed.withColumn("n", keyed.n + 1), MergeWork(("text",)))
    assert (done.inserted, done.updated) == (0, 1)
    assert [tuple(row) for row in target.spark.table(of_text.name).collect()] == [(key, 2)]


def test_a_value_is_checked_and_compared_as_the_table_keeps_it(create: Create) -> None:
    target = create("day", Rewrites.MERGE_ON_READ)
    kept = like(target, "SELECT 1 AS id, CAST(12.35 AS decimal(9,2)) AS price, CAST(0.1 AS float) AS share")
    same = target.spark.sql("SELECT 1 AS id, CAST(12.3450 AS decimal(9,4)) AS price, 0.1D AS share")
    assert kept.merge_rows(same, MergeWork(("id",))).is_idle
    nothing = target.spark.sql("SELECT 2 AS id, CAST(0.001 AS decimal(9,3)) AS price, 0.1D AS share")
    fork = Fork(kept.name, kept.base, "token", "demo.rows")
    _, failed = merge(target.spark, fork, nothing, MergeWork(("id",)), {"costs": "price > 0"})
    assert [(check.name, check.rows) for check in failed] == [("costs", 1)]


@pytest.mark.parametrize("rewrites", REWRITES)
def test_changes_count_once_where_their_rows_are_sampled_to_be_written_in_ranges(
    create: Create, rewrites: Rewrites
) -> None:
    target = create("day", rewrites)
    target.spark.sql(f"ALTER TABLE {target.name} SET TBLPROPERTIES ('write.merge.distribution-mode' = 'range')")
    rows = target.changes((1, 2, 3, 4, 155, DAYS * EACH)).selectExpr("*", "id < 3 AS gone")
    fork = Fork(target.name, target.base, "token", "demo.rows")
    done, _ = merge(target.spark, fork, rows, MergeWork(("id",), delete_when="gone"), {})
    assert (done.matched, done.inserted, done.updated, done.deleted) == (5, 1, 3, 2)
    snapshots = target.spark.table(f"{target.name}.snapshots").where(f"snapshot_id <> {fork.base_id}").collect()
    assert snapshots[0].summary[f"{merging.METRIC}updated"] == "6", "Spark counts them twice"


@pytest.mark.long("A property of Spark's plans, for changes of Spark's version.")
def test_what_is_known_of_changes_is_known_of_the_rows_that_are_merged(
    create: Create, monkeypatch: pytest.MonkeyPatch
) -> None:

    def count_and_lose(changes: DataFrame, keys: Sequence[str]) -> Row:
        facts = facts_of(changes, keys)
        changes.sparkSession.catalog.clearCache()  # as when a machine is lost, with what it kept
        return facts

    monkeypatch.setattr(merging, "facts_of", count_and_lose)
    monkeypatch.setattr(changes, "LISTED", 0)
    target = create("day")
    each_time_another = "CAST(java_method('java.lang.System', 'nanoTime') AS bigint)"
    rows = target.spark.sql(f"SELECT {each_time_another} AS id, DATE'2024-01-01' AS day, 0L AS n FROM range(2)")
    (bound,) = target.merge_rows(rows, MergeWork(("id",))).bounds
    added = sorted({*target.rows()} - {*range(DAYS * EACH)})
    assert [int(bound.low), int(bound.high)] == [added[0], added[-1]]


def test_parts_of_a_column_may_be_spelled_and_ordered_otherwise_than_the_tables(create: Create) -> None:
    target = create("day", Rewrites.MERGE_ON_READ)
    nested = like(target, "SELECT 1 AS id, named_struct('a', 1, 'b', 'x') AS part")
    turned = target.spark.sql("SELECT CAST(id AS int) AS id, named_struct('B', 'x', 'a', 1) AS part FROM range(1, 3)")
    done = nested.merge_rows(turned, MergeWork(("id",)))
    assert (done.inserted, done.updated) == (1, 0)
    assert sorted(row.part.a for row in target.spark.table(nested.name).collect()) == [1, 1]


def test_other_parts_than_the_tables_are_refused_by_name(create: Create) -> None:
    target = create("day", Rewrites.MERGE_ON_READ)
    nested = like(target, "SELECT 1 AS id, named_struct('a', 1, 'b', 'x') AS part")
    text = "the column part is struct<a:int> in the step's rows, expected struct<a:int,b:string>"
    with pytest.raises(changes.ChangesError, match=text):
        nested.merge_rows(target.spark.sql("SELECT 1 AS id, named_struct('a', 1) AS part"), MergeWork(("id",)))


def test_maps_and_collated_text_are_compared_as_they_are_stored(create: Create) -> None:
    target = create("day", Rewrites.MERGE_ON_READ)
    rows = [f"SELECT {id} AS id, 'A' AS text, map('a', 1, 'b', 2) AS tags" for id in (1, 2, 3)]
    kept = like(target, " UNION ALL ".join(rows))
    lower, upper = (f"'{text}' COLLATE UTF8_LCASE AS text" for text in "aA")
    changed = [
        f"SELECT 1 AS id, {upper}, map('b', 2, 'a', 1) AS tags",
        f"SELECT 2, {lower}, map('a', 1, 'b', 2)",
        f"SELECT 3, {upper}, map('a', 1)",
    ]
    done = kept.merge_rows(target.spark.sql(" UNION ALL ".join([*changed, *changed])), MergeWork(("id",)))
    assert (done.matched, done.left_out, done.updated) == (3, 3, 2)
    found = {row.id: (row.text, row.tags) for row in target.spark.table(kept.name).collect()}
    assert found == {1: ("A", {"a": 1, "b": 2}), 2: ("a", {"a": 1, "b": 2}), 3: ("A", {"a": 1})}


def test_zeros_of_two_signs_are_the_same_so_only_another_change_of_the_row_stores_the_other(create: Create) -> None:
    target = create("day", Rewrites.MERGE_ON_READ)
    kept = like(
        target, "SELECT * FROM VALUES (1, -0.0D, 'a'), (2, -0.0D, 'a'), (3, double('NaN'), 'a') AS t(id, x, text)"
    )
    changed = "SELECT * FROM VALUES (1, 0.0D, 'a'), (2, 0.0D, 'b'), (3, double('NaN'), 'a') AS s(id, x, text)"
    done = kept.merge_rows(target.spark.sql(changed), MergeWork(("id",)))
    assert (done.matched, done.updated) == (3, 1)
    found = {row.id: str(row.x) for row in target.spark.table(kept.name).collect()}
    assert found == {1: "-0.0", 2: "0.0", 3: "nan"}
