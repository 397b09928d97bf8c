"""The fork base of a rewrite: what it lists, what of the table it leaves out, and that it is written once.
That Spark can rewrite it is in test_fork_rewrites.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestContent, ManifestEntry, ManifestEntryStatus
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import StaticTable
from pyiceberg.transforms import IdentityTransform

from lakehouse_assets.commit.fork import FORK_PROPERTIES
from lakehouse_assets.commit.head_fork import write_head_fork
from tests.support.forks import Daily, daily_rows
from tests.support.manifests import sqlite_catalog
from tests.support.outsiders import commit_deletes, equality_deletes, live, live_deletes, position_deletes
from tests.support.rewrites import base_of

DAYS = ("2013-01-01", "2013-01-02")


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return sqlite_catalog(tmp_path)


@pytest.fixture
def daily(catalog: Catalog) -> Daily:
    """Two days of two files each, a position delete in the first day and an equality delete in the other."""
    daily = Daily.create(catalog)
    for carrier in ("AA", "BB"):
        daily.append(daily_rows(*DAYS, carrier=carrier, each=2))
    first, last = live(daily.table)[0], live(daily.table)[-1]
    commit_deletes(daily.table, position_deletes(daily.table, {first.data_file.file_path: [0]}))
    commit_deletes(daily.table, equality_deletes(daily.table, "carrier", ["BB"], last.data_file.partition))
    return daily


def fork(daily: Daily, token: str = "token") -> StaticTable:
    """Of the first day's files and the deletes."""
    day = live(daily.table)[0].data_file.partition
    entries = [e for e in live(daily.table) if e.data_file.partition == day]
    written = write_head_fork(daily.table, base_of(daily), token, [*entries, *live_deletes(daily.table)])
    assert written.snapshot_id == daily.table.current_snapshot().snapshot_id
    return StaticTable.from_metadata(written.location)


def test_it_lists_the_files_to_be_rewritten_as_they_are_at_the_head(daily: Daily) -> None:
    day = live(daily.table)[0].data_file.partition
    found, then = fork(daily), {e.data_file.file_path: e for e in (*live(daily.table), *live_deletes(daily.table))}
    (snapshot,) = found.snapshots()
    entries = [
        (manifest, entry)
        for manifest in snapshot.manifests(found.io)
        for entry in manifest.fetch_manifest_entry(found.io, discard_deleted=False)
    ]
    assert {m.content for m, _ in entries} == {ManifestContent.DATA, ManifestContent.DELETES}
    assert {e.data_file.partition for m, e in entries if m.content is ManifestContent.DATA} == {day}
    assert len(entries) == 4
    for _, entry in entries:
        same = then[entry.data_file.file_path]
        assert entry.status is ManifestEntryStatus.EXISTING
        assert (entry.sequence_number, entry.file_sequence_number, entry.snapshot_id) == (
            same.sequence_number,
            same.file_sequence_number,
            same.snapshot_id,
        )
        assert entry.data_file.lower_bounds == same.data_file.lower_bounds
        assert entry.data_file.equality_ids == same.data_file.equality_ids


def test_it_has_the_heads_number_and_nothing_else_of_the_tables_history(daily: Daily) -> None:
    daily.table.manage_snapshots().create_tag(daily.table.snapshots()[0].snapshot_id, "kept").commit()
    head, metadata = daily.table.current_snapshot(), fork(daily).metadata
    (snapshot,) = metadata.snapshots
    assert (snapshot.snapshot_id, snapshot.sequence_number) == (head.snapshot_id, head.sequence_number)
    assert (snapshot.parent_snapshot_id, metadata.last_sequence_number) == (None, head.sequence_number)
    assert list(metadata.refs) == ["main"]
    assert metadata.current_snapshot_id == head.snapshot_id
    assert not (metadata.metadata_log)
    assert not (metadata.snapshot_log)
    assert not (metadata.statistics)
    assert not (metadata.last_updated_ms)
    assert FORK_PROPERTIES.items() <= metadata.properties.items()
    assert metadata.table_uuid == daily.table.metadata.table_uuid
    assert metadata.location == daily.table.location()


def test_its_rows_are_read_under_the_columns_of_now(daily: Daily) -> None:
    """Not under those of the snapshot, which both sides of a proof would lack."""
    with daily.table.update_schema() as update:
        update.rename_column("flights", "number")
    (snapshot,) = fork(daily).snapshots()
    assert snapshot.schema_id == daily.table.metadata.current_schema_id


def test_files_of_several_specs_are_in_manifests_of_their_own(daily: Daily) -> None:
    with daily.table.update_spec() as update:
        update.add_field("carrier", IdentityTransform(), "carrier")
    daily.append(daily_rows(DAYS[0]))
    written = write_head_fork(daily.table, base_of(daily), "token", live(daily.table))
    manifests = StaticTable.from_metadata(written.location).current_snapshot().manifests(daily.table.io)
    assert sorted(m.partition_spec_id for m in manifests) == [0, 1]


def test_it_is_written_once_and_anew_where_its_writer_died(daily: Daily) -> None:
    first = Path(fork(daily).metadata_location.removeprefix("file://"))
    written = first.stat().st_mtime_ns
    assert Path(fork(daily).metadata_location.removeprefix("file://")) == first
    assert first.stat().st_mtime_ns == written
    first.write_text(first.read_text()[:100])
    fork(daily)
    assert FromInputFile.table_metadata(daily.table.io.new_input(str(first))).current_snapshot_id


def test_other_files_or_another_head_have_another_fork(daily: Daily) -> None:
    base, entries = base_of(daily), live(daily.table)

    def location(entries: Sequence[ManifestEntry], token: str = "token") -> str:
        return write_head_fork(daily.table, base_of(daily), token, entries).location

    one = location(entries)
    assert location(entries) == one
    assert len({one, location(entries[1:]), location(entries, "other")}) == 3
    daily.append(daily_rows("2013-02-01"))
    assert base_of(daily) != base
    assert location(entries) != one


def test_a_token_that_can_be_in_no_file_name_is_refused(daily: Daily) -> None:
    with pytest.raises(ValueError, match="becomes part of a file name"):
        write_head_fork(daily.table, base_of(daily), "a/b", live(daily.table))
