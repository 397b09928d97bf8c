"""A declaration's changes reach the table in the commit of the rows that need them, and old snapshots still read.
A real SQLite catalog; forks are staged by PyIceberg. With Spark: integration/test_schema_change_runs.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table as IcebergTable
from pyiceberg.types import IntegerType, ListType, LongType, MapType, NestedField, StringType, StructType
from pyiceberg.utils.datetime import date_to_days

from lakehouse_assets.commit.change import Change
from lakehouse_assets.commit.evolution import Evolution, evolution_texts, values_of
from lakehouse_assets.commit.fork import write_fork_base
from lakehouse_assets.commit.publish import Published, publish
from lakehouse_assets.commit.staged import StagedChunk, read_all
from lakehouse_assets.commit.strategies import strategy_of
from lakehouse_assets.commit.target import open_target
from lakehouse_assets.commit.tokens import TOKEN, RunToken
from lakehouse_assets.declare.columns import Column, column
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.errors import PublishRefused, StageAgain
from tests.support import light_stage
from tests.support.tables import numbers

DAY = column("day", "date", required=True)
EVOLVES = {"on_schema_change": "sync_all_columns", "on_layout_change": "evolve", "unique": [], "sorted_by": []}
OLD = numbers(columns=[DAY, column("n", "int"), column("old", "string")], **EVOLVES)
NEW = numbers(columns=[DAY, column("n", "long"), column("new", "string", "New.")], allow_drop=["old"], **EVOLVES)


@pytest.fixture
def catalog(settings: Settings) -> Catalog:
    return load_lake(settings)


def stage(
    catalog: Catalog, table: Table, token: str, day: str = "2024-01-01", **values: Any
) -> tuple[Evolution, StagedChunk]:
    """One row of a day, on the evolved table."""
    target = open_target(catalog, table)
    evolution = Evolution.of(table, target)
    base = write_fork_base(evolution.target, token).location
    fork = light_stage.register(base, target.io.properties)
    row = {"day": date.fromisoformat(day), **values}
    rows = pa.Table.from_pylist([row], schema=fork.schema().as_arrow())
    fork.append(rows, snapshot_properties={TOKEN: token})
    receipt = light_stage.receipt(table.identifier, token, [day], base, fork, rows=1)
    (staged,) = read_all(target.io.properties, [receipt])
    return evolution, staged


def land(catalog: Catalog, table: Table, evolution: Evolution, staged: StagedChunk) -> Published:
    change = Change(table.alignment.region(staged.receipt.keys), [staged])
    token = RunToken(staged.receipt.token, datetime.now(UTC))
    return publish(catalog, table.identifier, change, token, [evolution])


def write(catalog: Catalog, table: Table, token: str, day: str = "2024-01-01", **values: Any) -> IcebergTable:
    land(catalog, table, *stage(catalog, table, token, day, **values))
    return catalog.load_table(table.identifier)


def rows(table: IcebergTable, snapshot_id: int | None = None) -> list[dict[str, Any]]:
    found = table.scan(snapshot_id=snapshot_id).to_arrow().to_pylist()
    return sorted(({**row, "day": str(row["day"])} for row in found), key=lambda row: row["day"])


def test_columns_change_in_the_commit_of_the_rows_that_need_them(catalog: Catalog) -> None:
    before = write(catalog, OLD, "one", n=1, old="x")
    evolution, staged = stage(catalog, NEW, "two", "2024-01-02", n=2**40, new="y")
    untouched = catalog.load_table(NEW.identifier)
    assert untouched.metadata_location == before.metadata_location, "nobody sees it before the rows"
    land(catalog, NEW, evolution, staged)
    after = catalog.load_table(NEW.identifier)
    assert after.metadata.metadata_log[-1].metadata_file == before.metadata_location, "one commit"
    assert [(f.name, f.field_type, f.doc) for f in after.schema().fields[1:]] == [
        ("n", LongType(), None),
        ("new", StringType(), "New."),
    ]
    assert rows(after) == [
        {"day": "2024-01-01", "n": 1, "new": None},
        {"day": "2024-01-02", "n": 2**40, "new": "y"},
    ]
    assert rows(after, before.current_snapshot().snapshot_id) == [{"day": "2024-01-01", "n": 1, "old": "x"}]
    assert after.current_snapshot().schema_id == after.schema().schema_id
    texts = evolution_texts(evolution.applied)
    assert [*texts] == ["schema_change"]
    assert texts["schema_change"].splitlines() == [
        "- column n: int → long",
        "- column new: none → string",
        "- column old: string → none",
    ]


def test_a_column_with_values_is_dropped_only_where_that_is_said(catalog: Catalog) -> None:
    write(catalog, OLD, "one", n=1, old="x")
    write(catalog, OLD, "two", "2024-01-02", n=2, old=None)
    unsaid = replace(NEW, allow_drop=[])
    with pytest.raises(PublishRefused, match=r"column old: .*loses 1 value: .*allow_drop=\['old'\].*was='old'"):
        stage(catalog, unsaid, "three", n=3, new="y")
    kept = write(catalog, OLD, "four", n=1, old=None)
    assert [row["n"] for row in rows(write(catalog, unsaid, "five", n=3, new="y"))] == [3, 2], "no value was left"
    assert "old" in kept.schema().column_names


def test_values_that_come_while_a_run_is_at_work_are_not_dropped(catalog: Catalog) -> None:
    write(catalog, OLD, "one", n=1, old=None)
    evolution, staged = stage(catalog, replace(NEW, allow_drop=[]), "two", "2024-01-02", n=2, new="y")
    write(catalog, OLD, "three", "2024-01-03", n=3, old="x")
    with pytest.raises(PublishRefused, match="loses 1 value"):
        land(catalog, NEW, evolution, staged)


def test_the_values_of_a_column_are_counted_or_bounded(catalog: Catalog) -> None:
    def counted(*names: str) -> list[str]:
        table = catalog.load_table(OLD.identifier)
        return [str(values) for values in values_of(table, [table.schema().find_field(name) for name in names])]

    write(catalog, OLD, "one", n=1, old="x")
    nested = numbers(columns=[*OLD.columns, column("s", "struct<a: int>"), column("t", "string")], **EVOLVES)
    write(catalog, nested, "two", "2024-01-02", n=2, old=None, s={"a": 1}, t=None)
    assert counted("old", "s", "t") == ["1 value", "at most 1 value", "0 values"], "t was not there in the first file"
    unmeasured = replace(nested, properties={"write.metadata.metrics.column.t": "none"})
    write(catalog, unmeasured, "three", "2024-01-03", n=3, old="y", s=None, t=None)
    assert counted("old", "s", "t") == ["2 values", "at most 1 value", "at most 1 value"]


def test_a_column_is_renamed_with_its_values_in_the_commit_of_the_rows(catalog: Catalog) -> None:
    metrics = {"write.metadata.metrics.column.old": "full", "write.parquet.bloom-filter-enabled.column.old": "true"}
    before = write(catalog, replace(OLD, properties=metrics), "one", n=1, old="x")
    renamed = [DAY, column("n", "long"), column("fresh", "string", "Fresh.", was="old")]
    moved = {name.replace(".old", ".fresh"): value for name, value in metrics.items()}
    table = numbers(columns=renamed, properties=moved, **EVOLVES)
    evolution, staged = stage(catalog, table, "two", "2024-01-02", n=2, fresh="y")
    land(catalog, table, evolution, staged)
    after = catalog.load_table(table.identifier)
    assert after.metadata.metadata_log[-1].metadata_file == before.metadata_location, "one commit"
    assert after.schema().find_field("fresh").field_id == before.schema().find_field("old").field_id
    assert {name: value for name, value in after.properties.items() if ".column." in name} == moved
    assert rows(after) == [{"day": "2024-01-01", "n": 1, "fresh": "x"}, {"day": "2024-01-02", "n": 2, "fresh": "y"}]
    assert rows(after, before.current_snapshot().snapshot_id) == [{"day": "2024-01-01", "n": 1, "old": "x"}]
    assert evolution_texts(evolution.applied) == {
        "schema_change": "- name of a column: old → fresh\n- column n: int → long",
        "layout_change": "- doc of column fresh: '' → 'Fresh.'",
    }
    assert not Evolution.of(table, after).applied, "harmless once it has landed"
    again = numbers(columns=[DAY, column("n", "long"), column("last", "string", was="fresh")], **EVOLVES)
    assert [row["last"] for row in rows(write(catalog, again, "three", "2024-01-03", n=3, last="z"))] == ["x", "y", "z"]
    skipped = numbers(columns=[DAY, column("n", "long"), column("late", "string", was="fresh")], **EVOLVES)
    with pytest.raises(PublishRefused, match=r"column last: .*loses 3 values"):
        Evolution.of(skipped, catalog.load_table(skipped.identifier))


def test_a_column_that_was_dropped_and_comes_back_does_not_have_its_old_values(catalog: Catalog) -> None:
    write(catalog, OLD, "one", n=1, old="x")
    write(catalog, NEW, "two", "2024-01-02", n=2, new="y")
    again = numbers(columns=[DAY, column("n", "long"), column("old", "string")], allow_drop=["new"], **EVOLVES)
    assert rows(write(catalog, again, "three", "2024-01-03", n=3, old="z")) == [
        {"day": "2024-01-01", "n": 1, "old": None},
        {"day": "2024-01-02", "n": 2, "old": None},
        {"day": "2024-01-03", "n": 3, "old": "z"},
    ]


def test_nested_fields_are_added_widened_and_dropped(catalog: Catalog) -> None:
    def declared(type_: str) -> Table:
        return numbers(columns=[DAY, column("s", type_)], **EVOLVES)

    write(
        catalog, declared("struct<a: int, l: list<struct<x: int, y: int>>>"), "one", s={"a": 1, "l": [{"x": 1, "y": 2}]}
    )
    changed = declared("struct<a: long, b: string, l: list<struct<x: int, z: string>>, m: map<string, int>>")
    new = {"a": 2**40, "b": "b", "l": [{"x": 3, "z": "z"}], "m": [("k", 1)]}
    with pytest.raises(PublishRefused, match=r"column s\.l\.element\.y: .*allow_drop="):
        stage(catalog, changed, "none", "2024-01-02", s=new)
    changed = replace(changed, allow_drop=["s.l.element.y"])
    after = write(catalog, changed, "two", "2024-01-02", s=new)
    assert [row["s"] for row in rows(after)] == [{"a": 1, "b": None, "l": [{"x": 1, "z": None}], "m": None}, new]


def test_parts_that_others_required_become_optional(catalog: Catalog) -> None:
    plain = numbers(columns=[DAY, column("part", "struct<a: int, b: list<int>, c: map<int, int>>")], **EVOLVES)
    open_target(catalog, replace(plain, columns=[DAY]))
    b, c = ListType(7, IntegerType(), element_required=True), MapType(9, IntegerType(), 10, IntegerType(), True)
    strict = StructType(
        NestedField(4, "a", IntegerType(), required=True), NestedField(5, "b", b), NestedField(6, "c", c)
    )
    with catalog.load_table(plain.identifier).update_schema() as update:
        update.add_column("part", strict)
    part = {"a": None, "b": [None], "c": [(1, None)]}
    assert "required" in str(catalog.load_table(plain.identifier).schema().find_type("part"))
    after = write(catalog, plain, "one", part=part)
    assert "required" not in str(after.schema().find_type("part")).replace("key: required", "")
    assert rows(after) == [{"day": "2024-01-01", "part": part}]


def test_whoever_made_the_same_change_first_is_not_in_the_way(catalog: Catalog) -> None:
    write(catalog, OLD, "one", n=1, old="x")
    ours, theirs = (stage(catalog, NEW, f"run-{i}", f"2024-01-0{i}", n=i, new=f"n{i}") for i in (2, 3))
    land(catalog, NEW, *theirs)
    land(catalog, NEW, *ours)
    assert [row["new"] for row in rows(catalog.load_table(NEW.identifier))] == [None, "n2", "n3"]
    assert len(catalog.load_table(NEW.identifier).metadata.schemas) == 2


def test_a_column_that_somebody_else_added_never_gets_our_values(catalog: Catalog) -> None:
    """Both would have the next field id, and the same type."""
    write(catalog, OLD, "one", n=1, old="x")
    evolution, staged = stage(catalog, NEW, "two", "2024-01-02", n=2, new="ours")
    with catalog.load_table(NEW.identifier).update_schema() as update:
        update.add_column("theirs", StringType())
    keeps = numbers(columns=NEW.columns, **{**EVOLVES, "on_schema_change": "append_new_columns"})
    before = catalog.load_table(NEW.identifier).metadata_location
    for table in (NEW, keeps):
        moved = Evolution(table, evolution.found, evolution.applied, (), evolution.target)
        with pytest.raises(
            StageAgain, match=r"another writer changed its columns, .* \(column n: declared long, found int"
        ):
            land(catalog, table, moved, staged)
    assert catalog.load_table(NEW.identifier).metadata_location == before


def outside_drop(table: IcebergTable) -> None:
    with table.update_schema() as update:
        update.delete_column("n")


def outside_type(table: IcebergTable) -> None:
    with table.update_schema() as update:
        update.rename_column("n", "m")
    with table.update_schema() as update:
        update.add_column("n", StringType())


@pytest.mark.parametrize(
    ("meanwhile", "error"), [(outside_drop, StageAgain), (outside_type, PublishRefused)], ids=["dropped", "retyped"]
)
def test_what_others_change_meanwhile_is_staged_again_or_refused(
    catalog: Catalog, meanwhile: Callable[[IcebergTable], None], error: type[Exception]
) -> None:
    write(catalog, OLD, "one", n=1, old="x")
    staged = stage(catalog, NEW, "two", "2024-01-02", n=2, new="ours")
    meanwhile(catalog.load_table(NEW.identifier))
    before = catalog.load_table(NEW.identifier).metadata_location
    with pytest.raises(error):
        land(catalog, NEW, *staged)
    assert catalog.load_table(NEW.identifier).metadata_location == before


def test_an_older_declaration_of_a_run_that_began_before_still_lands(catalog: Catalog) -> None:
    """A column that was added is null in its rows, one that it lacks since is refused by the rules of a publish."""
    write(catalog, OLD, "one", n=1, old="x")
    fails = numbers(columns=OLD.columns, unique=[], sorted_by=[])
    staged = stage(catalog, fails, "two", "2024-01-02", n=2, old="y")
    adds = numbers(columns=[*OLD.columns, column("new", "string")], **EVOLVES)
    write(catalog, adds, "three", "2024-01-03", n=3, old="z", new="new")
    land(catalog, fails, *staged)
    assert [row["new"] for row in rows(catalog.load_table(NEW.identifier))] == [None, None, "new"]


@pytest.mark.parametrize("terms", [["month(day)"], ["bucket(4, n)"], ["day", "n"], ["n", "day"], []])
def test_partitions_and_order_change_and_change_back(catalog: Catalog, terms: list[str]) -> None:
    plain = {**EVOLVES, "partitions": None, "columns": [DAY, column("n", "long")]}
    first = numbers(**plain | {"partitioned_by": ["day", "bucket(2, n)"], "sorted_by": ["n"]})
    open_target(catalog, first)
    changed = numbers(**plain | {"partitioned_by": terms, "sorted_by": ["day"]}, properties={"owner": "me"})
    assert evolve(catalog, changed) == ["spec", "order", "property"]
    assert evolve(catalog, changed) == []
    assert evolve(catalog, first) == ["spec", "order"]
    back = catalog.load_table(first.identifier)
    assert back.spec().spec_id == 0, "what is not declared any more stays"
    assert back.properties["owner"] == "me", "what is not declared any more stays"
    assert evolve(catalog, numbers(**plain | {"partitioned_by": ["day"]})) == ["spec", "order"]
    assert catalog.load_table(first.identifier).sort_order().is_unsorted


def evolve(catalog: Catalog, table: Table) -> list[str]:
    evolution = Evolution.of(table, catalog.load_table(table.identifier))
    with catalog.load_table(table.identifier).transaction() as transaction:
        evolution.change(transaction)
    return [change.kind for change in evolution.applied]


def test_rows_are_written_under_new_partitions_and_order(catalog: Catalog) -> None:
    plain = {**EVOLVES, "partitions": None, "columns": [DAY, column("n", "long")]}
    write_whole(catalog, numbers(**plain | {"partitioned_by": ["day"]}), "one", n=1)
    after = write_whole(catalog, numbers(**plain | {"partitioned_by": ["n", "day"], "sorted_by": ["n"]}), "two", n=2)
    (task,) = after.scan().plan_files()
    assert (task.file.spec_id, list(task.file.partition)) == (1, [2, date_to_days(date(2024, 1, 1))])
    assert rows(after) == [{"day": "2024-01-01", "n": 2}]
    assert rows(after, after.snapshots()[0].snapshot_id) == [{"day": "2024-01-01", "n": 1}]


def write_whole(catalog: Catalog, table: Table, token: str, **values: Any) -> IcebergTable:
    evolution, staged = stage(catalog, table, token, **values)
    change = strategy_of(table.write_mode).change(table.alignment.region(()), [staged])
    publish(catalog, table.identifier, change, RunToken(token, datetime.now(UTC)), [evolution])
    return catalog.load_table(table.identifier)


def test_a_source_of_partitions_is_widened(catalog: Catalog) -> None:
    def declared(type_: str) -> Table:
        columns = [DAY, column("n", type_)]
        return numbers(columns=columns, partitions=None, partitioned_by=["n"], **EVOLVES)

    write_whole(catalog, declared("int"), "one", n=7)
    after = write_whole(catalog, declared("long"), "two", n=2**40)
    assert rows(after) == [{"day": "2024-01-01", "n": 2**40}]
    removed = after.current_snapshot().summary["deleted-data-files"]
    assert removed == "1"
    assert rows(after, after.snapshots()[0].snapshot_id) == [{"day": "2024-01-01", "n": 7}]


ONE_OF_EACH: dict[str, dict[str, Any]] = {
    "missing": {"columns": [column("more", "string")]},
    "type": {"columns": [column("n", "long")]},
    "doc": {"columns": [column("old", "string", "Old.")]},
    "spec": {"partitions": None, "partitioned_by": ["day", "old"]},
    "order": {"sorted_by": ["n"]},
    "property": {"properties": {"owner": "none"}},
}


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(ONE_OF_EACH, 2)))
def test_changes_of_two_kinds_are_made_together(catalog: Catalog, one: str, other: str) -> None:
    open_target(catalog, OLD)
    options = ONE_OF_EACH[one] | ONE_OF_EACH[other]
    changed = [c for kind in (one, other) for c in ONE_OF_EACH[kind].get("columns", ())]
    columns = {column.name: column for column in (*OLD.columns, *changed)}
    both = numbers(**EVOLVES | options | {"columns": list(columns.values())})
    assert sorted(evolve(catalog, both)) == sorted([one, other])
    assert evolve(catalog, both) == []


def test_a_new_column_may_be_what_the_table_is_partitioned_by(catalog: Catalog) -> None:
    open_target(catalog, OLD)
    columns = [*OLD.columns, column("shop", "string")]
    new = numbers(**EVOLVES | {"columns": columns, "partitions": None, "partitioned_by": ["day", "shop"]})
    assert evolve(catalog, new) == ["missing", "spec"]
    assert [field.name for field in catalog.load_table(new.identifier).spec().fields] == ["day", "shop"]


def test_what_another_run_has_added_is_not_dropped_by_one_that_began_before(catalog: Catalog) -> None:
    write(catalog, OLD, "one", n=1, old="x")
    evolution, staged = stage(catalog, NEW, "two", "2024-01-02", n=2, new="ours")
    newer = replace(NEW, columns=[*NEW.columns, column("precious", "string")])
    write(catalog, newer, "three", "2024-01-03", n=3, new="theirs", precious="y")
    with pytest.raises(PublishRefused, match="loses 1 value"):
        land(catalog, NEW, evolution, staged)
    again = Evolution.of(replace(NEW, allow_drop=["precious"]), catalog.load_table(NEW.identifier))
    with pytest.raises(PublishRefused, match="precious is not declared, and may have been added"):
        again.refuse_to_drop_others(evolution.target.schema().column_names)


def test_a_part_of_a_column_that_another_run_has_added_is_not_dropped_either(catalog: Catalog) -> None:
    def declared(parts: str, *more: Column) -> Table:
        return numbers(columns=[DAY, column("part", f"struct<{parts}>"), *more], **EVOLVES)

    write(catalog, declared("a: int"), "one", part={"a": 1})
    ours = declared("a: int", column("new", "string"))
    evolution, _ = stage(catalog, ours, "two", "2024-01-02", part={"a": 2}, new="ours")
    write(catalog, declared("a: int, precious: string"), "three", part={"a": 3, "precious": "y"})
    again = Evolution.of(replace(ours, allow_drop=["part.precious"]), catalog.load_table(ours.identifier))
    with pytest.raises(PublishRefused, match=r"part\.precious is not declared, and may have been added"):
        again.refuse_to_drop_others(evolution.target.schema().column_names)


def test_a_column_is_renamed_and_loses_a_part(catalog: Catalog) -> None:
    def declared(name: str, parts: str, **of_column: Any) -> Table:
        return numbers(columns=[DAY, column(name, f"struct<{parts}>", **of_column)], **EVOLVES)

    before = write(catalog, declared("old", "a: int, b: int"), "one", old={"a": 1, "b": 2})
    table = replace(declared("new", "a: long, c: int", was="old"), allow_drop=["new.b"])
    evolution, staged = stage(catalog, table, "two", "2024-01-02", new={"a": 3, "c": 4})
    evolution.refuse_to_drop_others(before.schema().column_names)
    with pytest.raises(PublishRefused, match=r"new\.b is not declared, and may have been added"):
        evolution.refuse_to_drop_others([name for name in before.schema().column_names if name != "old.b"])
    land(catalog, table, evolution, staged)
    assert [row["new"] for row in rows(catalog.load_table(table.identifier))] == [{"a": 1, "c": None}, {"a": 3, "c": 4}]


def test_what_is_set_of_a_column_goes_with_it(catalog: Catalog) -> None:
    """Iceberg's own library takes a table with metrics modes of unknown columns for broken."""
    modes = {f"write.metadata.metrics.column.{name}": "full" for name in ("old", "n", "older", "part", "part.a")}
    columns = [*OLD.columns, column("older", "string"), column("part", "struct<a: int>")]
    before = numbers(columns=columns, **EVOLVES | {"properties": modes})
    write(catalog, before, "one", n=1, old="x")
    kept = [found for found in columns if found.name in ("day", "n", "older")]
    table = numbers(columns=kept, allow_drop=["old"], **EVOLVES)
    after = write(catalog, table, "two", "2024-01-02", n=2)
    assert {name for name in after.properties if ".column." in name} == {
        "write.metadata.metrics.column.n",
        "write.metadata.metrics.column.older",
    }


def test_what_was_staged_is_not_taken_where_others_have_used_its_field_ids(catalog: Catalog) -> None:
    """The schema's id and the last field's are as if the run had landed; names have changed places."""
    both = numbers(columns=[DAY, column("n", "int"), column("a", "string"), column("b", "string")], **EVOLVES)
    plain = numbers(columns=[DAY, column("n", "int")], **EVOLVES)
    write(catalog, plain, "one", n=1)
    evolution, staged = stage(catalog, both, "two", "2024-01-02", n=2, a="a", b="b")
    with catalog.load_table(both.identifier).update_schema() as update:
        update.add_column("b", StringType()).add_column("a", StringType())
    with pytest.raises(StageAgain):
        land(catalog, both, evolution, staged)
    now = Evolution.of(both, catalog.load_table(both.identifier))
    assert not now.applied
    assert write_fork_base(now.target, "two").location != staged.receipt.fork_base, "it is staged again"


def test_nothing_differs_after_a_change_was_made(catalog: Catalog) -> None:
    write(catalog, OLD, "one", n=1, old="x")
    after = write(catalog, NEW, "two", "2024-01-02", n=2, new="y")
    assert not Evolution.of(NEW, after).applied


def test_a_policy_of_failing_fails_before_anything_is_written(catalog: Catalog) -> None:
    before = write(catalog, OLD, "one", n=1, old="x")
    with pytest.raises(PublishRefused, match="column n: declared long, found int"):
        Evolution.of(numbers(columns=NEW.columns, unique=[], sorted_by=[]), before)


def test_a_run_that_died_before_or_after_its_commit_goes_on_with_what_was_staged(catalog: Catalog) -> None:
    write(catalog, OLD, "one", n=1, old="x")
    evolution, staged = stage(catalog, NEW, "two", "2024-01-02", n=2, new="y")
    again = Evolution.of(NEW, catalog.load_table(NEW.identifier))
    assert write_fork_base(again.target, "two").location == staged.receipt.fork_base, "its receipts still fit"
    land(catalog, NEW, again, staged)
    landed = catalog.load_table(NEW.identifier)
    after = Evolution.of(NEW, landed)
    assert write_fork_base(after.target, "two").location == staged.receipt.fork_base
    for known in (evolution, after):
        assert land(catalog, NEW, known, staged).repeated
    assert catalog.load_table(NEW.identifier).metadata_location == landed.metadata_location


def test_a_layout_is_no_schema_change(catalog: Catalog) -> None:
    write(catalog, OLD, "one", n=1, old="x")
    columns = [DAY, column("n", "int"), column("old", "string"), column("new", "string")]
    changed = numbers(columns=columns, **{**EVOLVES, "sorted_by": ["n"], "properties": {"owner": "us"}})
    evolution, _ = stage(catalog, changed, "two", "2024-01-02", n=2, old="y", new="z")
    assert evolution_texts(evolution.applied) == {
        "schema_change": "- column new: none → string",
        "layout_change": "- sorted by: none → n\n- property owner: not set → us",
    }
