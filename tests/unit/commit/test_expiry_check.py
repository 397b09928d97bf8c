"""What is found wrong in what a catalog made of an expiry. Real catalogs: integration/test_expire_commit.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import MetadataLogEntry

from lakehouse_assets.commit.audit import AuditFinding
from lakehouse_assets.commit.expire_commit import Committed, Expiry, committed_by, faults, without_snapshots
from tests.support.forks import Daily, daily_rows
from tests.support.histories import History


@pytest.fixture
def history() -> History:
    """Three snapshots; the first is tagged."""
    history = History()
    history.commits(3)
    history.tag("first", 1)
    return history


def found(history: History, expiry: Expiry, after: TableMetadata, unread: str | None = None) -> list[AuditFinding]:
    return list(faults("t", expiry, Committed(("before", history.metadata), ("after", after), unread)))


def test_a_catalog_that_did_what_it_should_is_not_blamed(history: History) -> None:
    for gone, refs in (([2], []), ([1, 2], ["first"])):
        expiry, after = Expiry.of(history.metadata, gone, refs), without_snapshots(history.metadata, gone)
        kept = {name: ref for name, ref in after.refs.items() if name not in refs}
        assert found(history, expiry, after.model_copy(update={"refs": kept})) == []


def test_a_log_cut_further_than_needed_is_no_fault(history: History) -> None:
    after = without_snapshots(history.metadata, [2])
    assert found(history, Expiry.of(history.metadata, [2]), after.model_copy(update={"snapshot_log": []})) == []


def test_a_hole_in_the_log_is_a_fault(history: History) -> None:
    log = [entry for entry in history.log if entry.snapshot_id != 2]
    after = without_snapshots(history.metadata, [2]).model_copy(update={"snapshot_log": log})
    (finding,) = found(history, Expiry.of(history.metadata, [2]), after)
    assert finding.rule == "history"
    assert "table t: the catalog left a hole in the snapshot log of after" in finding.message
    assert finding.evidence == {"expected": 1, "found": 2}


def test_a_log_of_other_entries_is_a_fault(history: History) -> None:
    after = without_snapshots(history.metadata, [2]).model_copy(update={"snapshot_log": history.log[:1]})
    assert [finding.rule for finding in found(history, Expiry.of(history.metadata, [2]), after)] == ["history"]


def test_a_tag_lost_with_its_snapshot_is_a_fault_and_one_that_was_to_go_is_not(history: History) -> None:
    after = without_snapshots(history.metadata, [1]).model_copy(update={"refs": {"main": history.refs["main"]}})
    (finding,) = found(history, Expiry.of(history.metadata, [1]), after)
    assert finding.rule == "refs"
    assert "first was set to a snapshot while it expired" in finding.message
    assert finding.evidence == {"first": {"snapshot": 1, "manifest_list": "file:///t/metadata/snap-1.avro"}}
    assert found(history, Expiry.of(history.metadata, [1], ["first"]), after) == []


def test_a_tag_that_somebody_removed_is_no_fault(history: History) -> None:
    after = without_snapshots(history.metadata, [2]).model_copy(update={"refs": {"main": history.refs["main"]}})
    assert found(history, Expiry.of(history.metadata, [2]), after) == []


def test_snapshots_that_are_still_there_are_a_fault(history: History) -> None:
    (finding,) = found(history, Expiry.of(history.metadata, [2]), history.metadata)
    assert finding.rule == "snapshots"
    assert "reported that 1 snapshots expired" in finding.message


def test_not_to_know_what_was_lost_is_a_fault(history: History) -> None:
    (finding,) = found(history, Expiry.of(history.metadata, [2]), without_snapshots(history.metadata, [2]), "gone")
    assert finding.rule == "refs"
    assert "is not known: gone" in finding.message


# Which commit it was


@pytest.fixture
def daily(tmp_path: Path) -> Daily:
    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{tmp_path}/c.db", warehouse=tmp_path.as_uri())
    daily = Daily.create(catalog)
    for n in (1, 2, 3):
        daily.append(daily_rows(f"2013-01-0{n}"))
    return daily


def test_the_commit_is_found_among_others(daily: Daily) -> None:
    planned = daily.table
    expiry = Expiry.of(planned.metadata, [planned.snapshots()[0].snapshot_id])
    daily.table.manage_snapshots().create_tag(planned.snapshots()[1].snapshot_id, "before").commit()
    base = daily.table
    response = daily.catalog.commit_table(daily.table, (), expiry.updates())
    daily.append(daily_rows("2013-01-04"))
    now = daily.table

    commit = committed_by(expiry, planned, (now.metadata_location, now.metadata))

    assert commit.base == (base.metadata_location, base.metadata)
    assert commit.result == (response.metadata_location, response.metadata)
    assert commit.unread is None


def test_metadata_that_is_gone_or_not_in_the_log_is_told(daily: Daily) -> None:
    planned = daily.table
    expiry = Expiry.of(planned.metadata, [planned.snapshots()[0].snapshot_id])
    daily.append(daily_rows("2013-01-04"))
    between = daily.table.metadata_location
    daily.catalog.commit_table(daily.table, (), expiry.updates())
    now = daily.table
    Path(between.removeprefix("file://")).unlink()
    commit = committed_by(expiry, planned, (now.metadata_location, now.metadata))
    assert commit.base[0] == planned.metadata_location
    assert Path(between).name in (commit.unread or "")

    log = [MetadataLogEntry(metadata_file="elsewhere", timestamp_ms=1)]
    short = now.metadata.model_copy(update={"metadata_log": log})
    commit = committed_by(expiry, planned, (now.metadata_location, short))
    assert "is not in the metadata log of" in (commit.unread or "")
