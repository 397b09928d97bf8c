"""What Spark's rewrite does to a private fork lands on the table as it is by then, and changes no row: deletes of all
kinds, old partition specs, layouts, writers in between, and workers that lie. The op around it is in
test_spark_rewrite.py."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyspark.sql import SparkSession

from lakehouse_assets.commit.head_fork import rewritten_units
from lakehouse_assets.commit.landing import Landing, LandingRule
from lakehouse_assets.errors import PublishRefused
from lakehouse_assets.wire.work import Digest, RewriteAssignment
from lakehouse_assets.worker import fork_rewrite
from lakehouse_assets.worker.fork_rewrite import RewriteError, refuse_failures
from lakehouse_assets.worker.session import ForkError
from tests.support.fork_rewrites import Forks
from tests.support.forks import Daily, daily_rows
from tests.support.outsiders import commit_deletes, equality_deletes, live, live_deletes, multiset, position_deletes
from tests.support.rewrites import landed
from tests.support.wide import append, wide_rows, wide_table

pytestmark = pytest.mark.spark

DAYS = ("2013-01-01", "2013-01-02", "2013-01-03")
FIRST, SECOND, THIRD = (f"day={day}" for day in DAYS)
Sessions = Callable[[], SparkSession]


@pytest.fixture
def catalog_properties(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """A SQLite catalog; for tests with a server the REST catalog and S3."""
    if request.node.get_closest_marker("server"):
        return request.getfixturevalue("weed").properties()
    (tmp_path / "warehouse").mkdir()
    warehouse = (tmp_path / "warehouse").as_uri()
    return {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": warehouse}


@pytest.fixture
def forks(daily: Daily, worker: Sessions, tmp_path: Path) -> Forks:
    """Three days of three files each, of two rows each."""
    for carrier in ("AA", "BB", "CC"):
        daily.append(daily_rows(*DAYS, carrier=carrier, each=2))
    return Forks(daily, worker(), tmp_path)


def fates(landing: Landing) -> dict[str, LandingRule | None]:
    return {unit.name: dropped and dropped.rule for unit, dropped in landing.units}


def day_tuple(day: str) -> Record:
    return Record(15706 + DAYS.index(day))  # days since 1970


def files(daily: Daily, day: str) -> list[str]:
    entries = sorted(live(daily.table), key=lambda e: e.sequence_number)
    return [e.data_file.file_path for e in entries if e.data_file.partition == day_tuple(day)]


def test_a_fork_lands_by_partitions_as_one_replacement(forks: Forks) -> None:
    daily = forks.daily
    before, snapshots = multiset(daily.table), len(daily.table.snapshots())
    units = forks.units()
    assert multiset(daily.table) == before, "nothing is visible yet"
    assert len(daily.table.snapshots()) == snapshots, "nothing is visible yet"
    assert fates(landed(daily, *units)) == {FIRST: None, SECOND: None, THIRD: None}
    assert multiset(daily.table) == before
    assert len(live(daily.table)) == 3
    assert daily.table.current_snapshot().summary.operation is Operation.REPLACE


def test_rows_may_be_counted_only(forks: Forks) -> None:
    before = multiset(forks.daily.table)
    units = forks.units(counts_only=True)
    assert {unit.proof.before for unit in units} == {unit.proof.after for unit in units} == {Digest(6)}
    assert fates(landed(forks.daily, *units)) == {FIRST: None, SECOND: None, THIRD: None}
    assert multiset(forks.daily.table) == before


def test_rows_deleted_by_position_and_by_value_are_gone_and_their_delete_files_too(forks: Forks) -> None:
    daily = forks.daily
    commit_deletes(daily.table, position_deletes(daily.table, {files(daily, DAYS[0])[0]: [0]}))
    commit_deletes(daily.table, equality_deletes(daily.table, "carrier", ["BB"], day_tuple(DAYS[1])))
    daily.append(daily_rows(DAYS[1], carrier="BB"))  # younger than the delete: it stays
    before = multiset(daily.table)
    assert before.total() == 18 - 1 - 2 + 1

    assert fates(landed(daily, *forks.units())) == {FIRST: None, SECOND: None, THIRD: None}

    assert multiset(daily.table) == before
    assert len(live(daily.table)) == 3
    assert not live_deletes(daily.table)


@pytest.mark.server
def test_on_a_rest_catalog_and_s3_it_lands_beside_what_others_committed(forks: Forks) -> None:
    daily = forks.daily
    commit_deletes(daily.table, position_deletes(daily.table, {files(daily, DAYS[0])[0]: [0]}))
    units = forks.units()
    daily.append(daily_rows(DAYS[1], carrier="DD"))
    commit_deletes(daily.table, position_deletes(daily.table, {files(daily, DAYS[2])[0]: [0]}))
    before = multiset(daily.table)
    assert fates(landed(daily, *units)) == {FIRST: None, SECOND: None, THIRD: LandingRule.DELETED}
    assert multiset(daily.table) == before
    assert before.total() == 18 - 1 + 1 - 1


def test_a_partition_without_a_row_left_needs_no_file(forks: Forks) -> None:
    daily = forks.daily
    commit_deletes(daily.table, equality_deletes(daily.table, "carrier", ["AA", "BB", "CC"], day_tuple(DAYS[0])))
    before = multiset(daily.table)
    assert fates(landed(daily, *forks.units())) == {FIRST: None, SECOND: None, THIRD: None}
    assert multiset(daily.table) == before
    assert before.total() == 12
    assert len(live(daily.table)) == 2
    assert not live_deletes(daily.table)


# Writers in between


def test_a_partition_that_was_replaced_meanwhile_is_dropped_and_the_others_land(forks: Forks) -> None:
    daily, units = forks.daily, forks.units()
    daily.publish("run", [DAYS[1]], daily.stage("run", 0, [DAYS[1]], daily_rows(DAYS[1], each=5)))
    before = multiset(daily.table)
    assert fates(landed(daily, *units)) == {FIRST: None, SECOND: LandingRule.CHANGED, THIRD: None}
    assert multiset(daily.table) == before


def test_rows_deleted_by_position_meanwhile_stay_deleted(forks: Forks) -> None:
    daily, units = forks.daily, forks.units()
    commit_deletes(daily.table, position_deletes(daily.table, {files(daily, DAYS[0])[0]: [0]}))
    before = multiset(daily.table)
    assert fates(landed(daily, *units)) == {FIRST: LandingRule.DELETED, SECOND: None, THIRD: None}
    assert multiset(daily.table) == before


def test_rows_deleted_by_value_meanwhile_stay_deleted_although_their_partition_lands(forks: Forks) -> None:
    """Added files have the base's sequence number, not the fork's."""
    daily, units = forks.daily, forks.units()
    commit_deletes(daily.table, equality_deletes(daily.table, "carrier", ["BB"], day_tuple(DAYS[0])))
    before = multiset(daily.table)
    assert before.total() == 16
    assert set(fates(landed(daily, *units)).values()) == {None}
    assert multiset(daily.table) == before


def test_forks_of_several_workers_land_together(forks: Forks) -> None:
    daily, before = forks.daily, multiset(forks.daily.table)
    units = forks.units(worker_bytes=1)
    assert len(forks.receipts) == 3
    landing = landed(daily, *units)
    assert fates(landing) == {FIRST: None, SECOND: None, THIRD: None}
    assert multiset(daily.table) == before
    assert len(daily.table.snapshots()) == 4


def test_two_forks_of_one_partition_never_land_together(forks: Forks) -> None:
    units = [*forks.units(FIRST), *forks.units(FIRST)]
    with pytest.raises(PublishRefused, match="removed or added more than once"):
        landed(forks.daily, *units)


# Old partition specs


@pytest.fixture
def evolved(forks: Forks) -> Forks:
    """The three days as they were, and two days of one file each under the newer spec (day, carrier)."""
    daily = forks.daily
    with daily.table.update_spec() as update:
        update.add_field("carrier", IdentityTransform(), "carrier")
    daily.append(daily_rows(*DAYS[:2], carrier="AA", each=2))
    return forks


def test_files_of_an_old_spec_move_to_the_new_one_as_one_unit(evolved: Forks) -> None:
    daily, before = evolved.daily, multiset(evolved.daily.table)
    units = evolved.units(FIRST, SECOND, THIRD)
    assert [unit.name for unit in units] == [f"{FIRST}, {SECOND}, {THIRD}"]
    assert set(fates(landed(daily, *units)).values()) == {None}
    assert multiset(daily.table) == before
    assert {e.data_file.spec_id for e in live(daily.table)} == {daily.table.spec().spec_id}


def test_old_and_new_specs_are_rewritten_apart(evolved: Forks) -> None:
    daily, before = evolved.daily, multiset(evolved.daily.table)
    units = evolved.units()
    assert len(evolved.receipts) == 2
    assert [len(unit.partitions) for unit in units] == [1, 1, 3 + 9]
    assert set(fates(landed(daily, *units)).values()) == {None}
    assert multiset(daily.table) == before


def test_what_moves_is_dropped_whole_if_one_of_its_partitions_changed(evolved: Forks) -> None:
    daily, units = evolved.daily, evolved.units(FIRST, SECOND, THIRD)
    commit_deletes(daily.table, position_deletes(daily.table, {oldest(daily): [0]}))
    before = multiset(daily.table)
    assert set(fates(landed(daily, *units)).values()) == {LandingRule.DELETED}
    assert multiset(daily.table) == before


def test_values_deleted_meanwhile_in_an_old_partition_do_not_reach_what_moved(evolved: Forks) -> None:
    """An equality delete holds for files of its own spec and partition: moved rows would come back."""
    daily, units = evolved.daily, evolved.units(FIRST, SECOND, THIRD)
    delete = equality_deletes(daily.table, "flights", [1], day_tuple(DAYS[0]))
    delete.spec_id = 0
    commit_deletes(daily.table, delete)
    before = multiset(daily.table)
    assert before.total() == 22 - 3
    assert set(fates(landed(daily, *units)).values()) == {LandingRule.DELETED}
    assert multiset(daily.table) == before


def test_values_deleted_in_an_old_partition_are_applied_before_its_files_move(evolved: Forks) -> None:
    daily = evolved.daily
    delete = equality_deletes(daily.table, "flights", [1], day_tuple(DAYS[0]))
    delete.spec_id = 0
    commit_deletes(daily.table, delete)
    before = multiset(daily.table)
    assert set(fates(landed(daily, *evolved.units(FIRST, SECOND, THIRD))).values()) == {None}
    assert multiset(daily.table) == before
    assert not live_deletes(daily.table)


def test_values_deleted_in_a_new_partition_do_not_reach_rows_that_move_into_it(evolved: Forks) -> None:
    """They were deleted after the base, among rows that lay elsewhere then."""
    daily, units = evolved.daily, evolved.units(FIRST, SECOND, THIRD)
    commit_deletes(daily.table, equality_deletes(daily.table, "flights", [1], Record(15706, "AA")))
    before = multiset(daily.table)
    assert set(fates(landed(daily, *units)).values()) == {LandingRule.DELETED}
    assert multiset(daily.table) == before


def oldest(daily: Daily) -> str:
    return min(live(daily.table), key=lambda e: e.sequence_number).data_file.file_path


# Layouts, and rows of every type


@pytest.fixture
def wide(forks: Forks) -> Forks:
    return Forks(wide_table(forks.daily), forks.spark, forks.folder)


@pytest.mark.parametrize(
    ("sorts", "zorder"),
    [(False, ()), (True, ()), (False, ("n", "text"))],
)
def test_every_layout_keeps_every_row(wide: Forks, sorts: bool, zorder: tuple[str, ...]) -> None:
    table = wide.daily.table
    with table.update_sort_order() as update:
        update.desc("n", IdentityTransform())
    before = multiset(wide.daily.table)
    assert fates(landed(wide.daily, *wide.units(sorts=sorts, zorder=zorder))) == dict.fromkeys([FIRST, SECOND, THIRD])
    assert multiset(wide.daily.table) == before
    assert before.total() == 36
    if sorts:
        numbers = [read(path)["n"].to_pylist() for path in paths(wide.daily)]
        assert numbers == [sorted(found, reverse=True) for found in numbers]
    assert len(paths(wide.daily)) == 3


# Workers that lie: what they wrote is not what they read


Change = Callable[[pa.Table], pa.Table]


def one(name: str, value: Any, at: int = 0) -> Change:
    """One value of one row is another."""

    def change(rows: pa.Table) -> pa.Table:
        values = rows[name].to_pylist()
        values[at] = value
        n = rows.schema.get_field_index(name)
        return rows.set_column(n, rows.schema.field(n), pa.array(values, rows.schema.field(n).type))

    return change


LIES = {
    "loses a row": lambda rows: rows.slice(1),
    "doubles a row": lambda rows: pa.concat_tables([rows, rows.slice(0, 1)]),
    "loses one and doubles another": lambda rows: pa.concat_tables([rows.slice(1), rows.slice(1, 1)]),
    "doubles one pair for another": lambda rows: pa.concat_tables([rows.slice(2), rows.slice(2, 2)]),
    "alters a number": one("n", 77),
    "alters a text": one("text", "text 00"),
    "makes a value null": one("text", None),
    "makes a null a value": one("text", "", at=1),
    "makes a struct null": one("point", None, at=1),
    "makes a null a struct of nulls": one("point", {"x": None, "y": None}),
    "alters a field": one("point", {"x": None, "y": "1"}, at=1),
    "moves a null in a list": one("tags", [None, "a"]),
    "makes an empty list null": one("tags", None, at=1),
    "loses an element": one("tags", ["a"]),
    "alters a value of a map": one("counts", [("k", 5)]),
    "makes a map's null a value": one("counts", [("l", 0)], at=3),
    "makes an empty map null": one("counts", None, at=1),
    "moves a null to the column beside": lambda rows: one("at", None, 1)(one("ratio", 0.0, 1)(rows)),
    "alters microseconds": one("at", datetime(2013, 1, 1, 0, 1, 2, 345679)),
}


def test_a_worker_that_lies_never_lands(wide: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each lie in a partition of its own beside an honest one; all in one fork."""
    daily, call = wide.daily, fork_rewrite._call
    days = [f"2013-02-{n + 1:02}" for n in range(len(LIES))]
    for part in range(2):
        append(daily, [{**row, "day": date.fromisoformat(day)} for day in days for row in wide_rows(0, part)])
    before = multiset(daily.table)

    def lie(spark: SparkSession, fork: str, assignment: RewriteAssignment) -> dict[str, int]:
        said = call(spark, fork, assignment)
        for row in spark.sql(f"SELECT file_path, partition.day FROM {fork}.files").collect():
            if str(row.day) in days:
                tell(row.file_path, list(LIES.values())[days.index(str(row.day))])
        return said

    monkeypatch.setattr(fork_rewrite, "_call", lie)
    fate = fates(landed(daily, *wide.units()))
    assert {name for name, rule in fate.items() if rule is None} == {FIRST, SECOND, THIRD}
    told = dict(zip((f"day={day}" for day in days), LIES, strict=True))
    assert {told[name] for name, rule in fate.items() if rule is LandingRule.UNPROVED} == set(LIES)
    assert multiset(daily.table) == before


def tell(path: str, lie: Change) -> None:
    """Change a file in place, and not its length, which is in the manifest."""
    file = Path(path.removeprefix("file:"))
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)  # Hadoop's sum of the file
    told = io.BytesIO()
    lean = {"compression": "zstd", "store_schema": False, "write_statistics": False, "use_dictionary": False}
    pq.write_table(lie(pq.ParquetFile(file).read()), told, **lean)
    content = told.getvalue()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    padding = file.stat().st_size - len(content)
    assert padding >= 0
    file.write_bytes(content[:footer] + bytes(padding) + content[footer:])


def read(path: str) -> pa.Table:
    return pq.ParquetFile(path.removeprefix("file://")).read()


def paths(daily: Daily) -> list[str]:
    return [entry.data_file.file_path for entry in live(daily.table)]


# The procedure's word is not believed


def test_what_the_procedure_left_is_refused(forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    """It returns normally, and says that nothing failed."""
    daily = forks.daily
    for carrier in ("DD", "EE"):
        daily.append(daily_rows(DAYS[0], carrier=carrier, each=2))
    monkeypatch.setitem(fork_rewrite.OPTIONS, "rewrite-all", "false")
    (receipt,) = forks.rewrite()
    with pytest.raises(PublishRefused, match="still has 6 of the 11 files"):
        rewritten_units(daily.table.io, receipt)


def test_a_rewrite_without_a_commit_is_refused(forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fork_rewrite.OPTIONS, "rewrite-all", "false")
    with pytest.raises(ForkError, match="should have one commit, but has 0"):
        forks.rewrite()


def test_failures_that_the_procedure_admits_are_refused() -> None:
    with pytest.raises(RewriteError, match="2 files were not rewritten"):
        refuse_failures({"rewritten_data_files_count": 1, "failed_data_files_count": 2}, "nyc.flights")


def test_a_fork_that_lost_a_file_is_not_rewritten(forks: Forks) -> None:
    Path(files(forks.daily, DAYS[0])[0].removeprefix("file://")).unlink()
    with pytest.raises(Exception, match="does not exist"):
        forks.rewrite()
