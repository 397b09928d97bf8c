"""Manifests merged on real catalogs, by a publish and in a commit of their own: rows and entries stay, writers win, and
a rewrite that died is found again. Spark reads them in test_manifests_spark.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pyiceberg.avro.decoder import StreamingBinaryDecoder
from pyiceberg.avro.file import META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.resolver import construct_reader
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.manifest import ManifestContent, ManifestEntryStatus, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import MonthTransform
from pyiceberg.typedef import Record

from lakehouse_assets.commit import manifest_merge
from lakehouse_assets.commit.manifest_merge import ManifestMerge
from lakehouse_assets.commit.manifests import Partitions
from lakehouse_assets.errors import PublishRefused
from lakehouse_assets.maintenance.rewrite import manifests
from lakehouse_assets.maintenance.rewrite.manifests import ManifestsReport, rewrite_manifests
from tests.support.forks import SCHEMA, SPEC, Daily, daily_rows
from tests.support.manifests import entry_fields
from tests.support.outsiders import commit_deletes, equality_deletes, live, live_deletes, multiset, position_deletes
from tests.support.rewrites import token

on_one_catalog = pytest.mark.parametrize("catalog_properties", ["sqlite"], indirect=True)
"""For what is decided before the catalog is asked."""
DAYS = ("2013-01-01", "2013-01-02", "2013-01-03")
FIRST = 15706


def rewritten(daily: Daily, text: str | None = None) -> ManifestsReport:
    return rewrite_manifests(daily.catalog, daily.identifier, token(text), {"why": "test"})


def manifests_of(daily: Daily, content: ManifestContent = ManifestContent.DATA) -> list[ManifestFile]:
    found = daily.table.current_snapshot().manifests(daily.table.io)
    return [m for m in found if m.content is content and (m.has_added_files() or m.has_existing_files())]


def entries_of(daily: Daily) -> list[str]:
    return entry_fields([*live(daily.table), *live_deletes(daily.table)])


def overwrite(daily: Daily, *days: str) -> None:
    """A run of these days that publishes one row each."""
    run = "run-" + "-".join(days)
    daily.publish(run, days, daily.stage(run, 0, days, daily_rows(*days, carrier="ZZ")))


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> None:
    """Let others act when all manifests are written, and nothing is committed."""
    apply, acted = ManifestMerge.apply, list[bool]()

    def applied(*arguments: Any) -> None:
        apply(*arguments)
        if not acted:
            acted.append(True)
            act()

    monkeypatch.setattr(ManifestMerge, "apply", applied)


@pytest.fixture
def scattered(daily: Daily) -> Daily:
    """Six manifests that list every day."""
    for n in range(6):
        daily.append(daily_rows(*DAYS, carrier=f"A{n}"))
    return daily


@pytest.fixture
def apart(daily: Daily, monkeypatch: pytest.MonkeyPatch) -> Daily:
    """Three manifests for each of the days, which go together."""
    monkeypatch.setattr(manifest_merge, "TOGETHER", 3)
    for day in DAYS:
        for carrier in ("AA", "BB", "CC"):
            daily.append(daily_rows(day, carrier=carrier))
    return daily


def test_many_manifests_become_one_and_every_entry_stays(scattered: Daily) -> None:
    rows, entries, then = multiset(scattered.table), entries_of(scattered), scattered.table.current_snapshot()

    report = rewritten(scattered)

    assert (report.before.manifests, report.after.manifests) == (6, 1)
    assert (report.replaced.manifests, report.created.manifests, report.entries, report.dropped) == (6, 1, 18, 0)
    assert report.after.size == sum(m.manifest_length for m in manifests_of(scattered)) < report.before.size
    assert multiset(scattered.table) == rows
    assert entries_of(scattered) == entries
    assert {entry.status for entry in live(scattered.table)} == {ManifestEntryStatus.EXISTING}
    snapshot = scattered.table.current_snapshot()
    assert (snapshot.snapshot_id, snapshot.summary.operation) == (report.snapshot_id, Operation.REPLACE)
    told = ("manifests-created", "manifests-replaced", "manifests-kept", "entries-processed", "why", "total-records")
    assert [snapshot.summary[name] for name in told] == ["1", "6", "0", "18", "test", "18"]
    (manifest,) = manifests_of(scattered)
    for at in range(len(DAYS)):
        assert Partitions(scattered.table.metadata, [(0, Record(FIRST + at))]).may_be_in(manifest)
    assert not Partitions(scattered.table.metadata, [(0, Record(FIRST + len(DAYS)))]).may_be_in(manifest)
    assert (manifest.sequence_number, manifest.min_sequence_number) == (snapshot.sequence_number, 1)
    assert (manifest.added_snapshot_id, manifest.existing_files_count) == (snapshot.snapshot_id, 18)
    assert scattered.table.scan(snapshot_id=then.snapshot_id).to_arrow().num_rows == 18
    assert scattered.table.scan().to_arrow().num_rows == 18


@on_one_catalog
def test_what_is_good_enough_is_not_written_again(scattered: Daily) -> None:
    first = rewritten(scattered)
    again = rewritten(scattered)
    assert (again.snapshot_id, again.before, again.after) == (None, first.after, first.after)
    assert scattered.table.current_snapshot().snapshot_id == first.snapshot_id


@on_one_catalog
def test_a_table_without_snapshots_has_no_manifests(daily: Daily) -> None:
    assert rewritten(daily).snapshot_id is None


def test_a_second_call_of_the_same_run_changes_nothing(scattered: Daily) -> None:
    first = rewritten(scattered, "a")
    for n in range(3):
        scattered.append(daily_rows(*DAYS, carrier=f"B{n}"))
    head = scattered.table.current_snapshot().snapshot_id
    assert rewritten(scattered, "a").snapshot_id == first.snapshot_id
    assert scattered.table.current_snapshot().snapshot_id == head


def test_a_run_that_died_after_its_commit_finds_it(scattered: Daily, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(manifests._ManifestRewrite, "report", interrupted)
        rewritten(scattered, "a")
    head = scattered.table.current_snapshot()
    assert rewritten(scattered, "a").snapshot_id == head.snapshot_id
    assert len(scattered.table.snapshots()) == 7


@on_one_catalog
def test_a_run_that_died_before_its_commit_begins_anew(scattered: Daily, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = entries_of(scattered)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(manifests, "publish", interrupted)
        rewritten(scattered, "a")
    assert len(manifests_of(scattered)) == 6
    assert rewritten(scattered, "a").created.manifests == 1
    assert entries_of(scattered) == entries


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


# Writers win.


def test_a_group_of_which_a_writer_replaced_a_manifest_is_dropped_and_the_others_land(
    apart: Daily, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile(monkeypatch, lambda: overwrite(apart, DAYS[1]))
    report = rewritten(apart)
    assert (report.replaced.manifests, report.created.manifests, report.dropped) == (6, 2, 3)
    assert (report.before.manifests, report.after.manifests) == (7, 3) == (7, len(manifests_of(apart)))
    assert apart.counts() == {DAYS[0]: 3, DAYS[1]: 1, DAYS[2]: 3}
    assert multiset(apart.table).total() == 7


@on_one_catalog
def test_where_writers_replaced_a_manifest_of_every_group_nothing_is_committed(
    scattered: Daily, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile(monkeypatch, lambda: overwrite(scattered, DAYS[1]))
    report = rewritten(scattered)
    assert (report.snapshot_id, report.replaced.manifests, report.dropped) == (None, 0, 6)
    assert report.before == report.after
    assert scattered.table.current_snapshot().summary.operation is Operation.OVERWRITE
    assert scattered.counts() == {DAYS[0]: 6, DAYS[1]: 1, DAYS[2]: 6}


def test_what_is_appended_or_deleted_meanwhile_is_carried_over_as_it_is(
    scattered: Daily, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = live(scattered.table)[0].data_file.file_path

    def others() -> None:
        scattered.append(daily_rows(*DAYS, carrier="BB"))
        commit_deletes(scattered.table, position_deletes(scattered.table, {path: [0]}))
        commit_deletes(scattered.table, equality_deletes(scattered.table, "carrier", ["A1"], Record(FIRST)))

    meanwhile(monkeypatch, others)
    report = rewritten(scattered)
    assert (report.replaced.manifests, report.created.manifests, report.dropped) == (6, 1, 0)
    assert len(manifests_of(scattered)) == 2
    assert len(manifests_of(scattered, ManifestContent.DELETES)) == 2
    assert multiset(scattered.table).total() == 18 + 3 - 2


def test_a_commit_that_comes_first_costs_an_attempt_and_no_manifest_is_written_again(
    scattered: Daily, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries, planned, written = entries_of(scattered), [], []
    apply, write = ManifestMerge.apply, manifest_merge.write_manifest

    def outrun(self: ManifestMerge, *arguments: Any) -> Any:
        apply(self, *arguments)
        if not self.least:  # the publish's own, which follows at each attempt
            planned.append(self)
            if len(planned) < 3:
                scattered.append(daily_rows("2013-02-01", carrier=str(len(planned))))

    def counted(*arguments: Any) -> ManifestFile:
        written.append(1)
        return write(*arguments)

    monkeypatch.setattr(ManifestMerge, "apply", outrun)
    monkeypatch.setattr(manifest_merge, "write_manifest", counted)
    report = rewritten(scattered)
    assert (len(planned), len(written)) == (3, 1)
    assert (report.before.manifests, report.after.manifests) == (8, 3)
    snapshot = scattered.table.current_snapshot()
    (new,) = (m for m in manifests_of(scattered) if m.added_snapshot_id == snapshot.snapshot_id)
    assert new.sequence_number == snapshot.sequence_number
    assert set(entries) < set(entries_of(scattered))
    assert multiset(scattered.table).total() == 20


def test_a_table_that_was_created_again_is_refused(catalog: Catalog, scattered: Daily, monkeypatch: Any) -> None:
    def again() -> None:
        catalog.drop_table(scattered.identifier)
        catalog.create_table(scattered.identifier, SCHEMA, partition_spec=SPEC)

    meanwhile(monkeypatch, again)
    with pytest.raises(PublishRefused, match="dropped and created again"):
        rewritten(scattered)
    assert scattered.table.current_snapshot() is None


# What is listed.


@on_one_catalog
def test_each_new_manifest_lists_few_partitions_and_is_found_by_them(
    scattered: Daily, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_merge, "MOST_ENTRIES", 6)
    report = rewritten(scattered)
    assert report.created.manifests == 3, "one for each day, as six entries fill one"
    for at, day in enumerate(DAYS):
        wanted = Partitions(scattered.table.metadata, [(0, Record(FIRST + at))])
        found = [m for m in manifests_of(scattered) if wanted.may_be_in(m)]
        assert [m.existing_files_count for m in found] == [6]
        rows = scattered.table.scan(row_filter=f"day = '{day}'").to_arrow()
        assert rows.num_rows == 6


@on_one_catalog
def test_delete_files_are_listed_apart_with_their_equality_ids(scattered: Daily) -> None:
    paths = [entry.data_file.file_path for entry in live(scattered.table)]
    for path in paths[:3]:
        commit_deletes(scattered.table, position_deletes(scattered.table, {path: [0]}))
    for carrier in ("A1", "A2"):
        commit_deletes(scattered.table, equality_deletes(scattered.table, "carrier", [carrier], Record(FIRST)))
    rows, entries = multiset(scattered.table), entries_of(scattered)
    report = rewritten(scattered)
    assert (report.before.manifests, report.after.manifests) == (11, 2)
    assert len(manifests_of(scattered, ManifestContent.DELETES)) == 1
    assert multiset(scattered.table) == rows
    assert entries_of(scattered) == entries
    assert sorted(e.data_file.equality_ids or [] for e in live_deletes(scattered.table)) == [[], [], [], [2], [2]]


@on_one_catalog
def test_manifests_of_each_spec_stay_apart(scattered: Daily) -> None:
    with scattered.table.update_spec() as update:
        update.remove_field("day")
        update.add_field("day", MonthTransform(), "month")
    for n in range(4):
        scattered.add_file(daily_rows(DAYS[0], carrier=f"B{n}"))
    rows, entries = multiset(scattered.table), entries_of(scattered)
    report = rewritten(scattered)
    assert report.after.manifests == 2
    assert sorted(m.partition_spec_id for m in manifests_of(scattered)) == [0, 1]
    assert multiset(scattered.table) == rows
    assert entries_of(scattered) == entries


@on_one_catalog
def test_a_spec_of_a_dropped_column_is_left_alone(catalog: Catalog) -> None:
    table = Daily.create(catalog)
    with table.table.update_spec() as update:
        update.add_identity("carrier")
    for carrier in "AB":
        table.append(daily_rows(*DAYS, carrier=carrier))
    with table.table.update_spec() as update:
        update.remove_field("carrier")
    with table.table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("carrier")
    for _ in range(2):
        table.append(daily_rows(*DAYS).drop_columns("carrier"))
    rows = multiset(table.table)
    report = rewritten(table)
    assert (report.before.manifests, report.after.manifests, report.replaced.manifests) == (4, 3, 2)
    assert multiset(table.table) == rows


@on_one_catalog
def test_manifests_of_version_1_are_left_alone(catalog: Catalog) -> None:
    table = Daily.create(catalog, {"format-version": "1"})
    for carrier in "AB":
        table.append(daily_rows(*DAYS, carrier=carrier))
    with table.table.transaction() as transaction:
        transaction.upgrade_table_version(2)
    for carrier in "CD":
        table.append(daily_rows(*DAYS, carrier=carrier))
    rows, entries = multiset(table.table), entries_of(table)
    report = rewritten(table)
    assert (report.before.manifests, report.after.manifests, report.replaced.manifests) == (4, 3, 2)
    assert multiset(table.table) == rows
    assert entries_of(table) == entries


@on_one_catalog
def test_a_table_without_partitions(catalog: Catalog) -> None:
    table = Daily(catalog, Daily.create(catalog).identifier + "_whole")
    catalog.create_table(table.identifier, SCHEMA, partition_spec=PartitionSpec())
    for n in range(5):
        table.append(daily_rows(*DAYS, carrier=f"A{n}"))
    rows, entries = multiset(table.table), entries_of(table)
    assert rewritten(table).after.manifests == 1
    assert multiset(table.table) == rows
    assert entries_of(table) == entries


# What goes wrong changes nothing.


@on_one_catalog
def test_a_missing_manifest_is_named_and_nothing_changes(scattered: Daily) -> None:
    gone = manifests_of(scattered)[2].manifest_path
    scattered.table.io.delete(gone)
    head = scattered.table.metadata_location
    with pytest.raises(OSError, match=Path(gone).name):
        rewritten(scattered)
    assert scattered.table.metadata_location == head


class ReadOnlyIO(PyArrowFileIO):
    """A FileIO of a storage that may be read-only."""

    locked: ClassVar[bool] = False

    def new_output(self, location: str) -> PyArrowFile:
        if self.locked:
            raise OSError(30, "Read-only file system", location)
        return super().new_output(location)


@on_one_catalog
def test_a_read_only_storage_is_an_error_and_nothing_changes(
    catalog_properties: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    io = {"py-io-impl": f"{__name__}.ReadOnlyIO"}
    daily = Daily.create(load_catalog("lake", **{**catalog_properties, **io}))
    for n in range(3):
        daily.append(daily_rows(*DAYS, carrier=f"A{n}"))
    head = daily.table.metadata_location
    monkeypatch.setattr(ReadOnlyIO, "locked", True)
    with pytest.raises(OSError, match="Read-only file system"):
        rewritten(daily)
    assert daily.table.metadata_location == head


@on_one_catalog
def test_a_publish_merges_from_as_many_manifests_as_the_table_says(
    daily: Daily, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Iceberg's own writers do; entries stay, and so does what the publish itself adds."""
    with daily.table.transaction() as transaction:
        transaction.set_properties({"commit.manifest.min-count-to-merge": "4"})
    for n in range(4):
        daily.append(daily_rows(*DAYS, carrier=f"A{n}"))
    entries, rows = entries_of(daily), multiset(daily.table)
    overwrite(daily, "2013-02-01")
    assert len(manifests_of(daily)) == 2
    assert set(entries) < set(entries_of(daily))
    assert multiset(daily.table).total() == rows.total() + 1
    summary = daily.table.current_snapshot().summary
    assert [summary[name] for name in ("manifests-created", "manifests-replaced")] == ["1", "4"]


@on_one_catalog
def test_a_publish_merges_nothing_where_the_table_says_so(daily: Daily) -> None:
    with daily.table.transaction() as transaction:
        off = {"commit.manifest.min-count-to-merge": "2", "commit.manifest-merge.enabled": "false"}
        transaction.set_properties(off)
    for n in range(4):
        daily.append(daily_rows(*DAYS, carrier=f"A{n}"))
    overwrite(daily, "2013-02-01")
    assert len(manifests_of(daily)) == 5


@on_one_catalog
def test_a_torn_manifest_keeps_no_publish_from_landing(daily: Daily) -> None:
    with daily.table.transaction() as transaction:
        transaction.set_properties({"commit.manifest.min-count-to-merge": "2"})
    for day in DAYS:
        daily.append(daily_rows(day))
    torn = Path(manifests_of(daily)[0].manifest_path.removeprefix("file://"))
    torn.write_bytes(torn.read_bytes()[:-20])
    overwrite(daily, "2013-02-01")
    assert len(manifests_of(daily)) == 4


@on_one_catalog
def test_what_a_publish_keeps_is_written_in_blocks(scattered: Daily) -> None:
    """Also what it adds: PyIceberg's writer would make a block of each entry."""
    rewritten(scattered)
    overwrite(scattered, DAYS[0])
    counts = [blocks(Path(m.manifest_path.removeprefix("file://")).read_bytes()) for m in manifests_of(scattered)]
    assert sorted(counts) == [[1], [12]]


def blocks(manifest: bytes) -> list[int]:
    """How many entries each Avro block of a manifest has."""
    decoder = StreamingBinaryDecoder(manifest)
    construct_reader(META_SCHEMA, {-1: AvroFileHeader}).read(decoder)
    counts = []
    while decoder.tell() < len(manifest):
        counts.append(decoder.read_int())
        decoder.read_bytes()
        decoder.read(SYNC_SIZE)
    return counts
