"""Publish on real catalogs: what breaks it without Spark, each case compared with the naive way.
Commits that collide or get lost are in test_publish_commit.py, Spark's part in test_publish_spark.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import ValidationException
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThanOrEqual,
    LessThan,
)
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import TableProperties, snapshots
from pyiceberg.table.metadata import TableMetadataV3
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import MonthTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, StructType

from lakehouse_assets.commit import tokens
from lakehouse_assets.commit.change import Change
from lakehouse_assets.commit.commit_part import SummaryEntries
from lakehouse_assets.commit.fork import write_fork_base
from lakehouse_assets.commit.publish import publish
from lakehouse_assets.commit.staged import partition_stats, read_all
from lakehouse_assets.commit.tokens import TOKEN, RunToken
from lakehouse_assets.declare.alignment import Alignment
from lakehouse_assets.errors import PublishRefused, RolledBack
from lakehouse_assets.wire.receipts import Receipt
from lakehouse_assets.wire.work import Merged
from tests.support import light_stage
from tests.support.forks import SCHEMA, SPEC, CountingIO, Daily, RefusingIO, daily_rows, region

DAYS = ("2013-01-01", "2013-01-02", "2013-01-03")
NOTHING = AlwaysFalse()


def naive_overwrite(daily: Daily, files: Iterable[DataFile], row_filter: BooleanExpression = NOTHING) -> None:
    """The way that PyIceberg offers: remove the files that a scan finds, add these."""
    with daily.table.transaction() as tx, tx.update_snapshot().overwrite() as overwrite:
        for task in daily.table.scan(row_filter).plan_files():
            overwrite.delete_data_file(task.file)
        for file in files:
            overwrite.append_data_file(file)


def test_one_overwrite_snapshot_replaces_exactly_the_runs_partitions(daily: Daily) -> None:
    daily.append(daily_rows("2012-12-31", *DAYS, each=2))
    a = daily.stage("run", 0, DAYS[:1], daily_rows(DAYS[0], each=5))
    b = daily.stage("run", 1, DAYS[1:], daily_rows(DAYS[1], each=7))

    published = daily.publish("run", DAYS, a, b)

    assert daily.counts() == {"2012-12-31": 2, DAYS[0]: 5, DAYS[1]: 7}, "the empty day is replaced by nothing"
    assert (daily.last_change("records"), daily.last_change("data-files")) == ((12, 6), (2, 3))
    assert published.files_removed == 3
    assert len(daily.table.snapshots()) == 2
    summary = daily.table.current_snapshot().summary
    assert summary.operation is Operation.OVERWRITE
    assert summary["lakehouse.token"] == "run"
    assert summary["total-records"] == "14"
    assert partition_stats(region(*DAYS), [a, b])[DAYS[1]][:2] == (7, 1)


def test_the_first_publish_of_a_table_is_an_overwrite_too(daily: Daily) -> None:
    daily.publish("run", DAYS, daily.stage("run", 0, DAYS, daily_rows(*DAYS)))
    assert daily.table.current_snapshot().summary.operation is Operation.OVERWRITE
    assert daily.counts() == dict.fromkeys(DAYS, 1)


@pytest.mark.parametrize("before", [(), DAYS])
def test_a_run_whose_partitions_all_came_out_empty_is_one_snapshot(daily: Daily, before: tuple[str, ...]) -> None:
    if before:
        daily.append(daily_rows(*before))
    count = len(daily.table.snapshots())
    daily.publish("run", DAYS, daily.stage("run", 0, DAYS, None))
    assert daily.counts() == {}
    assert len(daily.table.snapshots()) == count + 1
    assert daily.last_change("records") == (0, len(before))
    assert daily.publish("run", DAYS, daily.stage("run", 0, DAYS, None)).repeated


def test_a_repeated_publish_is_recognised_and_adds_nothing(daily: Daily) -> None:
    daily.append(daily_rows(*DAYS))
    staged = daily.stage("run", 0, DAYS, daily_rows(*DAYS))
    first = daily.publish("run", DAYS, staged)
    daily.append(daily_rows("2013-02-01"))
    again = daily.publish("run", DAYS, staged)
    assert again.repeated
    assert (again.snapshot_id, again.attempts, again.files_removed) == (first.snapshot_id, 0, 3)
    assert daily.counts() == {**dict.fromkeys(DAYS, 1), "2013-02-01": 1}
    assert len(daily.table.snapshots()) == 3


def test_staged_files_that_are_on_the_table_already_stay_as_they_are(daily: Daily) -> None:
    """Removed and added again in one snapshot, they would be deleted when that snapshot expires."""
    daily.append(daily_rows(*DAYS, each=5))
    good = daily.stage("run", 0, DAYS[:2], daily_rows(*DAYS[:2]))
    daily.publish("run.part", DAYS[:2], good)
    late = daily.stage("run", 1, DAYS[2:], daily_rows(DAYS[2]))

    daily.publish("run", DAYS, good, late)

    assert daily.counts() == dict.fromkeys(DAYS, 1)
    assert daily.last_change("data-files") == (1, 1)
    live = {task.file.file_path for task in daily.table.scan().plan_files()}
    deleted = daily.table.inspect.entries().filter(pc.field("status") == 2)["data_file"].to_pylist()
    assert not live & {file["file_path"] for file in deleted}


def test_a_table_without_partitions_is_replaced_whole(catalog: Catalog) -> None:
    catalog.create_namespace_if_not_exists("nyc")
    identifier = f"nyc.whole_{uuid4().hex[:8]}"
    whole = Daily(catalog, identifier)
    catalog.create_table(identifier, SCHEMA)
    everything = Alignment.of(identifier, SCHEMA, PartitionSpec(), None).region([])
    whole.append(daily_rows(*DAYS, each=5))
    staged = whole.stage("run", 0, (), daily_rows(*DAYS))
    run = RunToken("run", datetime.now(UTC))
    change = Change(everything, [staged])
    publish(catalog, identifier, change, run, [SummaryEntries({"lakehouse.asset-key": "nyc/whole"})])
    assert whole.counts() == dict.fromkeys(DAYS, 1)
    assert whole.last_change("records") == (3, 15)
    assert whole.table.current_snapshot().summary["lakehouse.asset-key"] == "nyc/whole"
    assert partition_stats(everything, [staged])[""][:2] == (3, 1)


# Row 2: all live entries of a fork without history


def test_every_file_of_a_fork_is_taken_and_none_of_the_targets_own(daily: Daily) -> None:
    daily.append(daily_rows(*DAYS, each=3))
    staged = daily.stage("run", 0, DAYS[:2], daily_rows(*DAYS[:2], each=2))
    assert sorted(f.record_count for f in staged.files) == [2, 2]
    empty = daily.stage("run", 1, DAYS[2:], None)
    assert empty.files == (), "an empty fork has none of the target's files"


def test_a_fork_written_twice_is_refused(daily: Daily) -> None:
    """The naive way takes the last snapshot's added files and loses the first write, or both and doubles rows."""
    receipt = daily.receipt("run", 0, DAYS, daily_rows(*DAYS))
    twice = _written_again(daily, receipt)
    with pytest.raises(PublishRefused, match="expected one"):
        read_all(daily.table.io.properties, [twice])


def _written_again(daily: Daily, receipt: Receipt) -> Receipt:
    io = {k: v for k, v in daily.table.io.properties.items() if k.startswith(("s3.", "client."))}
    private = load_catalog("again", type="sql", uri="sqlite:///:memory:", warehouse="file:///nonexistent", **io)
    private.create_namespace("forks")
    fork = private.register_table("forks.fork", receipt.metadata_location)
    fork.append(daily_rows(*DAYS), snapshot_properties={"lakehouse.token": receipt.token})
    return replace(receipt, metadata_location=fork.metadata_location, rows=2 * receipt.rows)


def test_a_fork_of_another_run_is_refused(daily: Daily) -> None:
    receipt = daily.receipt("other", 0, DAYS, daily_rows(*DAYS))
    with pytest.raises(PublishRefused, match="other"):
        read_all(daily.table.io.properties, [replace(receipt, token="run")])


@pytest.mark.parametrize("branch", ["audit", None], ids=["on a branch", "on none"])
def test_a_fork_whose_rows_are_not_on_main_is_refused(daily: Daily, branch: str | None) -> None:
    """Write-audit-publish leaves them so: read from main, the fork would be empty, and so would the partitions."""
    daily.append(daily_rows(*DAYS))
    target = daily.table
    base = write_fork_base(target, "run", target.current_snapshot())
    fork = light_stage.register(base.location, target.io.properties)
    fork.append(daily_rows(*DAYS), snapshot_properties={TOKEN: "run"}, branch=branch)
    receipt = light_stage.receipt(daily.identifier, "run", DAYS, base.location, fork, 0)
    receipt = replace(receipt, base_snapshot_id=base.snapshot_id, merged=Merged(inserted=3))
    with pytest.raises(PublishRefused, match=r"has its snapshot on .*, expected main only"):
        read_all(target.io.properties, [receipt])


def test_a_receipt_that_counts_other_rows_than_its_fork_is_refused(daily: Daily) -> None:
    receipt = daily.receipt("run", 0, DAYS, daily_rows(*DAYS))
    with pytest.raises(PublishRefused, match=r"3 rows .* says 4"):
        read_all(daily.table.io.properties, [replace(receipt, rows=4)])


def test_a_fork_that_did_not_begin_with_the_snapshot_of_its_receipt_is_refused(daily: Daily) -> None:
    daily.append(daily_rows(*DAYS))
    receipt = daily.receipt("run", 0, DAYS, daily_rows(*DAYS))
    head = daily.table.current_snapshot().snapshot_id
    with pytest.raises(PublishRefused, match=f"no snapshot {head}, with which it began"):
        read_all(daily.table.io.properties, [replace(receipt, base_snapshot_id=head)])
    (chunk,) = read_all(daily.table.io.properties, [receipt])
    assert chunk.receipt.base_snapshot_id is None


# Row 4: the schema or the spec evolved between stage and publish


def test_a_spec_changed_between_stage_and_publish_is_refused(daily: Daily) -> None:
    staged = daily.stage("run", 0, DAYS, daily_rows(*DAYS))
    with daily.table.update_spec() as update:
        update.remove_field("day")
        update.add_field("day", MonthTransform(), "day_month")

    with pytest.raises(
        PublishRefused, match=r"partitioned by day \(spec 0\) when .* is now partitioned by month\(day\) \(spec"
    ):
        daily.publish("run", DAYS, staged)
    assert daily.table.current_snapshot() is None

    # The naive way commits the files under the wrong spec, silently: a filter no longer finds their rows.
    naive_overwrite(daily, staged.files)
    found = daily.table.scan(EqualTo("day", DAYS[0])).to_arrow().num_rows
    assert found == 0, "the rows are there and not found"


def test_a_nullable_column_added_meanwhile_is_no_obstacle(daily: Daily) -> None:
    staged = daily.stage("run", 0, DAYS, daily_rows(*DAYS))
    with daily.table.update_schema() as update:
        update.add_column("tail_number", StringType())
    daily.publish("run", DAYS, staged)
    assert daily.table.scan().to_arrow()["tail_number"].null_count == len(DAYS)


def before_commit(daily: Daily, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let somebody else act first, once, between a publisher's checks and its commit."""
    commit = daily.catalog.commit_table

    def late(*arguments: Any) -> Any:
        monkeypatch.setattr(daily.catalog, "commit_table", commit)
        act()
        return commit(*arguments)

    monkeypatch.setattr(daily.catalog, "commit_table", late)


@pytest.mark.parametrize("change", ["schema", "spec"])
def test_what_evolves_between_the_checks_and_the_commit_is_seen(
    daily: Daily, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """A REST catalog compares only what a commit asks it to compare."""
    staged = daily.stage("run", 0, DAYS, some_nulls())

    def evolve() -> None:
        if change == "schema":
            require(daily, "carrier")
            return
        with daily.table.update_spec() as update:
            update.remove_field("day")
            update.add_field("day", MonthTransform(), "day_month")

    before_commit(daily, monkeypatch, evolve)
    with pytest.raises(PublishRefused, match=r"become required contain nulls|partitioned by"):
        daily.publish("run", DAYS, staged)
    assert daily.table.current_snapshot() is None


def test_a_renamed_partition_column_is_no_obstacle(daily: Daily) -> None:
    daily.append(daily_rows(*DAYS, each=2))
    staged = daily.stage("run", 0, DAYS, daily_rows(*DAYS))
    with daily.table.update_schema() as update:
        update.rename_column("day", "flown_on")
    daily.publish("run", DAYS, staged)
    assert daily.table.scan().to_arrow()["flown_on"].length() == len(DAYS)


def test_a_column_of_another_type_is_refused(catalog: Catalog) -> None:
    catalog.create_namespace_if_not_exists("nyc")
    daily = Daily.create(catalog)
    with daily.table.update_schema() as update:
        update.add_column("seats", IntegerType())
    staged = daily.stage("run", 0, DAYS, None)
    with daily.table.update_schema() as update:
        update.update_column("seats", LongType())
    with pytest.raises(PublishRefused, match="seats"):
        daily.publish("run", DAYS, staged)


def require(daily: Daily, column: str) -> None:
    with daily.table.update_schema(allow_incompatible_changes=True) as update:
        update.update_column(column, required=True)


def some_nulls() -> pa.Table:
    rows = daily_rows(*DAYS)
    return rows.set_column(1, "carrier", pa.array([None, "AA", None]))


@pytest.mark.parametrize("metrics", [{}, {"write.metadata.metrics.default": "none"}], ids=["counted", "read"])
def test_nulls_in_a_column_that_became_required_meanwhile_are_refused(
    catalog: Catalog, metrics: dict[str, str]
) -> None:
    daily = Daily.create(catalog, metrics)
    staged = daily.stage("run", 0, DAYS, some_nulls())
    require(daily, "carrier")
    with pytest.raises(
        PublishRefused, match=r"become required contain nulls in what chunk 0 staged before \(carrier: 2 rows\)"
    ):
        daily.publish("run", DAYS, staged)
    assert daily.table.current_snapshot() is None

    naive_overwrite(daily, staged.files)
    assert daily.table.scan().to_arrow()["carrier"].null_count == 2
    assert daily.table.scan("carrier is null").to_arrow().num_rows == 0, "the nulls are there and not found"


def test_a_column_without_nulls_may_become_required_meanwhile_under_another_name_too(daily: Daily) -> None:
    staged = daily.stage("run", 0, DAYS, daily_rows(*DAYS))
    require(daily, "carrier")
    with daily.table.update_schema() as update:
        update.rename_column("carrier", "airline")
    daily.publish("run", DAYS, staged)
    assert daily.table.scan().to_arrow()["airline"].to_pylist() == ["AA"] * 3


def test_a_field_of_a_struct_that_became_required_is_refused(daily: Daily) -> None:
    with daily.table.update_schema() as update:
        update.add_column("plane", StructType(NestedField(9, "seats", IntegerType(), required=False)))
    staged = daily.stage("run", 0, DAYS, daily_rows(*DAYS))
    with daily.table.update_schema(allow_incompatible_changes=True) as update:
        update.update_column(("plane", "seats"), required=True)
    with pytest.raises(PublishRefused, match="plane"):
        daily.publish("run", DAYS, staged)


def test_a_table_created_again_is_refused_even_if_its_files_went_with_it(daily: Daily) -> None:
    staged = daily.stage("run", 0, DAYS, daily_rows(*DAYS))
    daily.table.io.delete(staged.files[0].file_path)
    daily.catalog.drop_table(daily.identifier)
    daily.catalog.create_table(daily.identifier, SCHEMA, partition_spec=SPEC)
    with pytest.raises(PublishRefused, match="UUID"):
        daily.publish("run", DAYS, staged)


def test_a_table_created_again_is_refused_without_a_look_at_files_its_catalog_gives_no_access_to(
    catalog_properties: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    daily = Daily.create(load_catalog("lake", **catalog_properties, **{"py-io-impl": "tests.support.forks.RefusingIO"}))
    staged = daily.stage("run", 0, DAYS, daily_rows(*DAYS))
    daily.catalog.drop_table(daily.identifier)
    daily.catalog.create_table(daily.identifier, SCHEMA, partition_spec=SPEC)
    monkeypatch.setattr(RefusingIO, "refuses", True)
    with pytest.raises(PublishRefused, match="UUID"):
        daily.publish("run", DAYS, staged)


def test_a_table_dropped_meanwhile_is_refused(daily: Daily) -> None:
    staged = daily.stage("run", 0, DAYS, daily_rows(*DAYS))
    daily.catalog.drop_table(daily.identifier)
    with pytest.raises(PublishRefused, match="no longer in the catalog"):
        daily.publish("run", DAYS, staged)


def test_another_identity_gives_another_fork_base(daily: Daily) -> None:
    first = write_fork_base(daily.table, "run")
    daily.append(daily_rows(*DAYS))
    assert write_fork_base(daily.table, "run") == first, "other rows do not matter to a fork"
    with daily.table.update_schema() as update:
        update.add_column("tail_number", StringType())
    assert write_fork_base(daily.table, "run") != first


def test_a_torn_fork_base_is_written_again(daily: Daily) -> None:
    location = write_fork_base(daily.table, "run").location
    with daily.table.io.new_output(location).create(overwrite=True) as stream:
        stream.write(b'{"format-version": 2, "table-u')
    assert write_fork_base(daily.table, "run").location == location
    assert daily.stage("run", 0, DAYS, daily_rows(*DAYS)).files


# Row 5: old specs, file by file


def months_to_days(daily: Daily, *days: str) -> None:
    """Rows of January written by month, then the table evolves to days."""
    with daily.table.update_spec() as update:
        update.remove_field("day")
        update.add_field("day", MonthTransform(), "day_month")
    for month in sorted({day[:7] for day in days}):
        daily.add_file(daily_rows(*(day for day in days if day.startswith(month))))
    with daily.table.update_spec() as update:
        update.remove_field("day_month")
        update.add_identity("day")


JANUARY = tuple(f"2013-01-{day:02}" for day in range(1, 32))


def test_a_file_of_an_older_spec_that_reaches_beyond_the_run_is_refused(daily: Daily) -> None:
    months_to_days(daily, *JANUARY)
    staged = daily.stage("run", 0, DAYS[:1], daily_rows(DAYS[0]))
    with pytest.raises(
        PublishRefused,
        match=r"older partition spec.*day_month=2013-01, partitioned by month\(day\).*now partitioned by day",
    ):
        daily.publish("run", DAYS[:1], staged)
    assert len(daily.counts()) == 31

    # The naive way chooses by the scan's row filter, and drops the month for the day.
    one_day = And(GreaterThanOrEqual("day", JANUARY[0]), LessThan("day", JANUARY[1]))
    naive_overwrite(daily, staged.files, one_day)
    assert sum(daily.counts().values()) == 1, "31 rows became 1"


def test_files_of_an_older_spec_wholly_inside_go_and_those_outside_stay(daily: Daily) -> None:
    months_to_days(daily, *JANUARY, "2013-02-01", "2013-02-02")
    daily.append(daily_rows("2013-02-03"))
    daily.publish("run", JANUARY, daily.stage("run", 0, JANUARY, daily_rows(*JANUARY[:2])))
    assert daily.counts() == dict.fromkeys((*JANUARY[:2], "2013-02-01", "2013-02-02", "2013-02-03"), 1)


# Row 6: twice the same


def test_the_same_chunk_twice_is_refused(daily: Daily) -> None:
    staged = daily.stage("run", 0, DAYS, daily_rows(*DAYS))
    with pytest.raises(PublishRefused, match="more than once"):
        daily.publish("run", DAYS, staged, staged)
    assert daily.table.current_snapshot() is None
    naive_overwrite(daily, [*staged.files, *staged.files])
    assert daily.counts() == dict.fromkeys(DAYS, 2), "the naive way: every row twice"


def test_the_same_file_under_two_chunks_counts_once(daily: Daily) -> None:
    staged = daily.stage("run", 0, DAYS, daily_rows(*DAYS))
    twin = replace(staged, receipt=replace(staged.receipt, chunk=1))
    daily.publish("run", DAYS, staged, twin)
    assert daily.last_change("records") == (3, 0)
    assert daily.counts() == dict.fromkeys(DAYS, 1)


# Row 7: somebody else commits between stage and publish


def test_an_outsiders_append_elsewhere_survives(daily: Daily) -> None:
    daily.append(daily_rows(*DAYS))
    staged = daily.stage("run", 0, DAYS, daily_rows(*DAYS, each=2))
    daily.append(daily_rows("2013-06-01"))
    daily.publish("run", DAYS, staged)
    assert daily.counts() == {**dict.fromkeys(DAYS, 2), "2013-06-01": 1}


def test_an_outsiders_append_to_our_partitions_is_replaced(daily: Daily) -> None:
    staged = daily.stage("run", 0, DAYS, daily_rows(*DAYS, each=2))
    daily.append(daily_rows(*DAYS, each=5))
    daily.publish("run", DAYS, staged)
    assert daily.counts() == dict.fromkeys(DAYS, 2)


@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
def test_pyicebergs_own_retry_fails_or_lets_foreign_rows_stand_beside_ours(daily: Daily, isolation: str) -> None:
    """Why publish owns its loop: the naive way, for the record."""
    daily.append(daily_rows(*DAYS))
    daily.table.transaction().set_properties(
        {TableProperties.WRITE_DELETE_ISOLATION_LEVEL: isolation}
    ).commit_transaction()
    staged = daily.stage("run", 0, DAYS, daily_rows(*DAYS, each=2))
    table = daily.table
    transaction = table.transaction()
    with transaction.update_snapshot().overwrite() as overwrite:
        for task in table.scan().plan_files():
            overwrite.delete_data_file(task.file)
        for file in staged.files:
            overwrite.append_data_file(file)
    daily.append(daily_rows(DAYS[0], each=5))
    if isolation == "serializable":
        with pytest.raises(ValidationException):
            transaction.commit_transaction()
    else:
        transaction.commit_transaction()
        assert daily.counts()[DAYS[0]] == 2 + 5


# Row 8: tokens, expiry, rollback


def test_the_token_outlives_its_snapshots_expiry(daily: Daily) -> None:
    staged = daily.stage("run", 0, DAYS, daily_rows(*DAYS))
    first = daily.publish("run", DAYS, staged)
    daily.append(daily_rows("2013-02-01"))
    daily.table.maintenance.expire_snapshots().by_id(first.snapshot_id).commit()
    assert all(s.summary["lakehouse.token"] is None for s in daily.table.snapshots()), "the naive way finds nothing"
    again = daily.publish("run", DAYS, staged)
    assert again.repeated
    assert again.snapshot_id == first.snapshot_id
    assert daily.counts() == {**dict.fromkeys(DAYS, 1), "2013-02-01": 1}


def test_a_rolled_back_run_stops_and_asks(daily: Daily) -> None:
    daily.append(daily_rows("2012-12-31"))
    before = daily.table.current_snapshot().snapshot_id
    staged = daily.stage("run", 0, DAYS, daily_rows(*DAYS))
    first = daily.publish("run", DAYS, staged)
    daily.table.manage_snapshots().set_current_snapshot(snapshot_id=before).commit()
    assert daily.table.snapshot_by_id(first.snapshot_id), "the naive way takes it for published"
    with pytest.raises(RolledBack, match=r"rolled back.*new run"):
        daily.publish("run", DAYS, staged)
    daily.append(daily_rows("2013-02-01"))
    with pytest.raises(RolledBack):
        daily.publish("run", DAYS, staged)
    assert daily.counts() == {"2012-12-31": 1, "2013-02-01": 1}


def test_a_snapshot_kept_by_a_tag_where_expiry_cut_the_history_is_trusted(daily: Daily) -> None:
    staged = daily.stage("run", 0, DAYS, daily_rows(*DAYS))
    first = daily.publish("run", DAYS, staged)
    daily.table.manage_snapshots().create_tag(first.snapshot_id, "kept").commit()
    daily.append(daily_rows("2013-02-01"))
    between = daily.table.current_snapshot().snapshot_id
    daily.append(daily_rows("2013-02-02"))
    daily.table.maintenance.expire_snapshots().by_id(between).commit()
    assert daily.publish("run", DAYS, staged).repeated


def publish_as_of(daily: Daily, token: str, created: datetime) -> None:
    daily.publish(token, DAYS, daily.stage(token, 0, DAYS, daily_rows(*DAYS)), created=created)


def tokens_of(daily: Daily) -> list[str]:
    return sorted(n.removeprefix(tokens.PREFIX) for n in daily.table.properties if n.startswith(tokens.PREFIX))


def test_tokens_older_than_a_month_are_pruned_in_the_same_commit(daily: Daily, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "NEWEST", 2)
    now = datetime.now(UTC)
    with daily.table.transaction() as tx:
        tx.set_properties({"lakehouse.run.old": "1@1000", "lakehouse.run.broken": "x", "owner": "somebody"})
    publish_as_of(daily, "first", now - timedelta(days=1))
    assert tokens_of(daily) == ["first", "old"], "no token tells yet how late it is"
    publish_as_of(daily, "second", now)
    assert tokens_of(daily) == ["first", "old", "second"], "the newest two of before"
    publish_as_of(daily, "third", now)
    assert tokens_of(daily) == ["first", "second", "third"]
    assert daily.table.properties["owner"] == "somebody"


def test_a_clock_that_is_forty_days_ahead_forgets_no_run(daily: Daily) -> None:
    now = datetime.now(UTC)
    publish_as_of(daily, "live", now - timedelta(days=1))
    publish_as_of(daily, "ahead", now + timedelta(days=40))
    for n in range(3):
        publish_as_of(daily, f"later-{n}", now + timedelta(minutes=n))
    assert tokens_of(daily) == ["ahead", "later-0", "later-1", "later-2", "live"]


# Row 9: orphan removal between stage and publish


def test_a_staged_file_that_is_gone_is_refused(daily: Daily) -> None:
    staged = daily.stage("run", 0, DAYS, daily_rows(*DAYS))
    daily.table.io.delete(staged.files[0].file_path)
    with pytest.raises(PublishRefused, match=r"1 of 3 staged files are gone"):
        daily.publish("run", DAYS, staged)
    assert daily.table.current_snapshot() is None
    naive_overwrite(daily, staged.files)
    with pytest.raises(FileNotFoundError):
        daily.counts()


def test_a_staged_file_that_goes_before_a_later_attempt_is_refused(
    daily: Daily, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = daily.stage("run", 0, DAYS, daily_rows(*DAYS))

    def first_of_all() -> None:
        daily.append(daily_rows("2013-02-01"))
        daily.table.io.delete(staged.files[0].file_path)

    before_commit(daily, monkeypatch, first_of_all)
    with pytest.raises(PublishRefused, match=r"1 of 3 staged files are gone"):
        daily.publish("run", DAYS, staged)
    assert daily.counts() == {"2013-02-01": 1}, "and everybody can read it"


def test_a_fork_that_is_gone_is_refused(daily: Daily) -> None:
    receipt = daily.receipt("run", 0, DAYS, daily_rows(*DAYS))
    daily.table.io.delete(receipt.metadata_location)
    with pytest.raises(PublishRefused, match=r"is gone.*again"):
        read_all(daily.table.io.properties, [receipt])


# Row 13: format version 3


def test_format_version_3_is_refused(daily: Daily) -> None:
    table = daily.table
    v3 = {**table.metadata.model_dump(), "format-version": 3, "next-row-id": 0}
    table.metadata = TableMetadataV3.model_validate(v3)
    with pytest.raises(PublishRefused, match="format version is 3, expected 2"):
        write_fork_base(table, "run")


# Row 16: delete-only manifests


def test_ten_publishes_leave_no_heap_of_manifests(daily: Daily) -> None:
    for n in range(10):
        daily.publish(f"run-{n}", DAYS, daily.stage(f"run-{n}", 0, DAYS, daily_rows(*DAYS)))
    manifests = daily.table.current_snapshot().manifests(daily.table.io)
    assert len(manifests) == 2, "what was added, and what this snapshot removed"
    assert daily.counts() == dict.fromkeys(DAYS, 1)


def test_the_naive_way_heaps_up_delete_only_manifests(daily: Daily) -> None:
    for n in range(4):
        naive_overwrite(daily, daily.stage(f"run-{n}", 0, DAYS, daily_rows(*DAYS)).files, AlwaysTrue())
    manifests = daily.table.current_snapshot().manifests(daily.table.io)
    assert [m.has_added_files() for m in manifests].count(False) == 3


# Growth


def test_only_manifests_that_can_hold_the_runs_partitions_are_read(catalog_properties: dict[str, str]) -> None:
    daily = Daily.create(load_catalog("lake", **catalog_properties, **{"py-io-impl": "tests.support.forks.CountingIO"}))
    days = [f"2013-04-{n:02}" for n in range(1, 31)]
    for day in days:
        daily.append(daily_rows(day))
    staged = daily.stage("run", 0, days[6:8], daily_rows(*days[6:8]))
    CountingIO.manifests_read.clear()
    assert daily.publish("run", days[6:8], staged).files_removed == 2
    assert len(CountingIO.manifests_read) == 2, "each once, and no other of 30"


# Clocks


def test_a_clock_behind_the_last_commit_never_turns_the_history_back(
    daily: Daily, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = daily.stage("run", 0, DAYS, daily_rows(*DAYS))
    daily.append(daily_rows("2013-02-01"))
    ahead = daily.table.current_snapshot().timestamp_ms
    now = snapshots.time.time()
    monkeypatch.setattr(snapshots.time, "time", lambda: now - 3600)
    daily.publish("run", DAYS, staged)
    assert daily.table.current_snapshot().timestamp_ms >= ahead
    log = [entry.timestamp_ms for entry in daily.table.metadata.snapshot_log]
    assert log == sorted(log)
