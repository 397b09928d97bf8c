"""The audit's decisions on forks staged by PyIceberg: what it finds, how it reports it, what it lets pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from lakehouse_assets.commit import staged
from lakehouse_assets.commit.audit import AuditFinding, Rule, audit, own_commits
from lakehouse_assets.commit.staged import StagedChunk
from lakehouse_assets.commit.strategies import strategy_of
from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.modes import Append, Merge, WriteMode
from lakehouse_assets.declare.table import Table
from lakehouse_assets.wire.receipts import Receipt
from lakehouse_assets.wire.work import Merged
from tests.support.forks import ARROW, DAILY, Daily, daily_rows
from tests.support.outsiders import commit_deletes, live, position_deletes

DAYS = ("2013-01-01", "2013-01-02", "2013-01-03")
DECLARED = Table(
    identifier="nyc.flights",
    columns=[column("day", "date", required=True), column("carrier", "string"), column("flights", "long")],
    step="tests.support.forks:flights",
    partitions=DAILY,
    partitioned_by=["day"],
    unique=["carrier"],
)
CARRIER_REQUIRED = replace(
    DECLARED,
    columns=[column("day", "date", required=True), column("carrier", "string", required=True), DECLARED.columns[2]],
)


@pytest.fixture
def daily(tmp_path: Path) -> Daily:
    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    return Daily.create(catalog)


def found(table: Table, *chunks: StagedChunk, days: tuple[str, ...] = DAYS) -> list[AuditFinding]:
    strategy = strategy_of(table.write_mode)
    return audit(table, table.alignment.region(list(days)), chunks, strategy.rules, strategy.at_most_changed)


def without_carrier(*days: str) -> pa.Table:
    rows = daily_rows(*days)
    return rows.set_column(1, "carrier", pa.nulls(rows.num_rows, pa.string())).cast(ARROW)


def test_good_chunks_pass_without_reading_their_files(daily: Daily, monkeypatch: pytest.MonkeyPatch) -> None:
    a = daily.stage("run", 0, DAYS[:1], daily_rows(DAYS[0]))
    b = daily.stage("run", 1, DAYS[1:], daily_rows(*DAYS[1:]))

    def never(*_):
        raise AssertionError("statistics are there: nothing to scan")

    monkeypatch.setattr(staged, "_read_column", never)
    assert found(CARRIER_REQUIRED, a, b) == []


def test_rows_outside_their_own_chunk_are_found_even_inside_the_run(daily: Daily) -> None:
    strayed = daily.stage("run", 0, DAYS[:1], daily_rows(*DAYS[:2], each=4))
    other = daily.stage("run", 1, DAYS[1:], daily_rows(*DAYS[1:]))
    (finding,) = found(DECLARED, strayed, other)
    assert finding.rule == "partitions"
    assert "4 rows outside" in finding.message
    assert "day=2013-01-02: 4" in finding.message
    assert "Expected rows only in 2013-01-01," in finding.message
    assert finding.evidence == {"chunk": 0, "rows": 4, "partitions": {"day=2013-01-02": 4}}


def test_a_stray_row_of_a_day_that_python_lacks_is_found_too(daily: Daily) -> None:
    chunk = daily.stage("run", 0, DAYS, daily_rows(*DAYS, "2013-05-05"))
    (stray,) = (file for file in chunk.files if file.partition[0] == 15830)
    stray.partition[0] = 2932897  # in the year 10000, as Spark writes it
    (finding,) = found(DECLARED, chunk)
    assert finding.rule == "partitions"
    assert "1 rows outside" in finding.message


def test_nulls_in_a_required_column_are_found_in_statistics(daily: Daily) -> None:
    chunk = daily.stage("run", 0, DAYS, pa.concat_tables([daily_rows(*DAYS[:2]), without_carrier(DAYS[2])]))
    (finding,) = found(CARRIER_REQUIRED, chunk)
    assert finding.rule == "required"
    assert finding.evidence == {"column": "carrier", "rows": 1, "partitions": {"day=2013-01-03": 1}}
    assert "carrier is null in 1 rows" in finding.message
    assert found(DECLARED, chunk) == [], "only where it is declared"


def test_missing_statistics_mean_a_scan_and_never_a_pass(daily: Daily) -> None:
    bare = Daily.create(daily.catalog, {"write.metadata.metrics.default": "none"})
    chunk = bare.stage("run", 0, DAYS, pa.concat_tables([daily_rows(*DAYS[:2]), without_carrier(DAYS[2])]))
    assert all(not f.null_value_counts for f in chunk.files), "the naive way finds no nulls in nothing"
    (finding,) = found(CARRIER_REQUIRED, chunk)
    assert finding.evidence["partitions"] == {"day=2013-01-03": 1}
    assert found(CARRIER_REQUIRED, bare.stage("fine", 0, DAYS, daily_rows(*DAYS))) == []


def test_duplicates_that_the_worker_counted_are_reported(daily: Daily) -> None:
    chunk = daily.stage("run", 4, DAYS, daily_rows(*DAYS))
    chunk = replace(chunk, receipt=replace(chunk.receipt, duplicates=("carrier=AA: 2 rows in day=2013-01-02",)))
    (finding,) = found(DECLARED, chunk)
    assert finding.rule == "unique"
    assert "carrier must be unique" in finding.message
    assert "carrier=AA: 2 rows in day=2013-01-02" in finding.message
    assert finding.evidence["examples"] == ["carrier=AA: 2 rows in day=2013-01-02"]


def test_empty_partitions_pass_only_where_the_table_says_so(daily: Daily) -> None:
    chunk = daily.stage("run", 0, DAYS, daily_rows(DAYS[0]))
    (finding,) = found(DECLARED, chunk)
    assert finding.rule == "empty"
    assert finding.evidence == {"partitions": ["2013-01-02", "2013-01-03"], "count": 2}
    assert "2 of 3 partitions" in finding.message
    assert found(replace(DECLARED, allow_empty=True), chunk) == []


def test_everything_wrong_is_reported_at_once(daily: Daily) -> None:
    chunk = daily.stage("run", 0, DAYS, pa.concat_tables([without_carrier(DAYS[0]), daily_rows("2013-05-05")]))
    assert [f.rule for f in found(CARRIER_REQUIRED, chunk)] == ["partitions", "required", "empty"]


def test_the_audit_holds_the_rules_that_it_is_given_and_those_of_every_run(daily: Daily) -> None:
    chunk = daily.stage("run", 0, DAYS, pa.concat_tables([without_carrier(DAYS[0]), daily_rows("2013-05-05")]))
    region = CARRIER_REQUIRED.alignment.region(list(DAYS))
    broken = audit(CARRIER_REQUIRED, region, [chunk], {Rule.PARTITIONS})
    assert [finding.rule for finding in broken] == ["partitions"]


def test_a_table_without_partitions_is_one_partition(daily: Daily, tmp_path: Path) -> None:
    whole = Table(
        identifier="nyc.whole",
        columns=[column("day", "date", required=True), column("carrier", "string"), column("flights", "long")],
        step="tests.support.forks:flights",
    )
    daily.catalog.create_table("nyc.whole", whole.schema)
    table = Daily(daily.catalog, "nyc.whole")
    assert found(whole, table.stage("run", 0, (), daily_rows(*DAYS)), days=()) == []
    (finding,) = found(whole, table.stage("empty", 0, (), None), days=())
    assert "1 of 1 partitions have no rows (whole table)" in finding.message


@pytest.mark.parametrize("mode", [Merge(["carrier"]), Append(dedup_on=["carrier"])])
def test_a_commit_of_another_spark_session_is_not_taken_for_the_run_s_own(mode: WriteMode, daily: Daily) -> None:
    """The fork of a merge begins with the table's snapshot, and so with its application's id."""
    daily.table.append(daily_rows(DAYS[0]), snapshot_properties={"app-id": "local-1700000000000"})
    table = daily.table.refresh()
    base = strategy_of(mode).fork(table, "run", 0)
    receipt = Receipt(
        table=DECLARED.identifier,
        token="run",
        chunk=0,
        work="work",
        worker="worker",
        created_at="2026-01-01T00:00:00+00:00",
        fork_base=base.location,
        metadata_location=base.location,
        base_snapshot_id=base.snapshot_id,
        merged=Merged(),
    )
    assert own_commits(DECLARED, table.metadata, staged.read_all(table.io.properties, [receipt])) == []


def test_the_rows_before_a_merge_are_counted_and_not_those_of_a_summary(tmp_path: Path) -> None:
    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("demo")
    rows = [pa.table({"n": pa.array(range(first, first + 10), pa.int64())}) for first in (0, 10)]
    table = catalog.create_table("demo.t", rows[0].schema)
    table.append(rows[0])
    commit_deletes(table, position_deletes(table, {live(table)[0].data_file.file_path: [*range(9)]}))
    table.append(rows[1])
    base = table.current_snapshot()
    assert base is not None
    assert base.summary is not None
    assert (base.summary["total-records"], base.summary["total-position-deletes"]) == ("20", "0"), (
        "as their writer has it"
    )
    declared = Table(
        "demo.t",
        [column("n", "long")],
        step="tests.support.forks:flights",
        write_mode=Merge(["n"], at_most_changed=0.1),
    )
    receipt = Receipt(
        "demo.t",
        "token",
        chunk=0,
        work="",
        fork_base=table.metadata_location,
        metadata_location=table.metadata_location,
        created_at="",
        worker="",
        base_snapshot_id=base.snapshot_id,
        merged=Merged(updated=1),
    )
    strategy = strategy_of(declared.write_mode)
    chunks = [StagedChunk(receipt, (), table.metadata, table.io)]
    region = declared.alignment.region([])
    assert audit(declared, region, chunks, {Rule.CHANGED}, strategy.at_most_changed) == []
    receipt = replace(receipt, merged=Merged(updated=2))
    chunks = [StagedChunk(receipt, (), table.metadata, table.io)]
    (finding,) = audit(declared, region, chunks, {Rule.CHANGED}, strategy.at_most_changed)
    assert finding.evidence == {"updated": 2, "deleted": 0, "rows": 11}
