"""What an expiry takes out of metadata, and what it leaves whole: time travel, statistics, lineage, tokens."""

from __future__ import annotations

import json

import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import CommitTableRequest
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.update import RemoveSnapshotsUpdate, update_table_metadata

from lakehouse_assets.commit.expire import Expiry, unchanged
from tests.support.histories import DAY, NOW, History, current_at


def applied(metadata: TableMetadata, expiry: Expiry) -> TableMetadata:
    return update_table_metadata(metadata, expiry.updates())


def naively(metadata: TableMetadata, *gone: int) -> TableMetadata:
    """PyIceberg's own update."""
    return update_table_metadata(metadata, (RemoveSnapshotsUpdate(snapshot_ids=list(gone)),))


def test_time_travel_into_a_hole_of_the_log_finds_nothing_where_the_naive_way_finds_the_wrong_snapshot() -> None:
    history = History()
    one, two, three = history.commits(3)
    history.tag("kept", one)
    then = NOW - DAY  # when two was current

    naive, ours = naively(history.metadata, two), applied(history.metadata, Expiry.of(history.metadata, [two]))

    assert current_at(history.metadata, then) == two
    assert current_at(naive, then) == one, "the naive way"
    assert current_at(ours, then) is None
    assert current_at(ours, NOW) == three
    assert [s.snapshot_id for s in ours.snapshots] == [one, three]


def test_the_log_begins_behind_its_last_entry_of_what_expired() -> None:
    history = History()
    one, two, three = history.commits(3)
    history.point("main", two)
    history.point("main", three)
    for gone, left in ((one, [two, three, two, three]), (two, [three])):
        after = applied(history.metadata, Expiry.of(history.metadata, [gone]))
        assert [entry.snapshot_id for entry in after.snapshot_log] == left


def test_statistics_of_both_kinds_go_with_their_snapshot() -> None:
    history = History()
    one, two = history.commits(2)
    history.analyze(one)
    history.analyze(two)
    after = applied(history.metadata, Expiry.of(history.metadata, [one]))
    assert [s.snapshot_id for s in after.statistics] == [two]
    assert [s.snapshot_id for s in after.partition_statistics] == [two]
    assert len(naively(history.metadata, one).partition_statistics) == 2, "the naive way"


def test_a_child_goes_on_naming_its_parent_as_in_iceberg_s_java() -> None:
    history = History()
    one, _ = history.commits(2)
    (left,) = applied(history.metadata, Expiry.of(history.metadata, [one])).snapshots
    assert left.parent_snapshot_id == one


def test_snapshots_are_named_oldest_first_whatever_the_clocks() -> None:
    history = History()
    ids = [history.commit(ago) for ago in (5, 9, 7, 0)]
    expiry = Expiry.of(history.metadata, ids[2::-1])
    assert expiry.snapshot_ids == tuple(ids[:3])


def test_a_snapshot_that_got_a_tag_meanwhile_is_a_conflict_where_the_naive_way_removes_the_tag() -> None:
    history = History()
    one, _ = history.commits(2)
    expiry = Expiry.of(history.metadata, [one])
    history.tag("meanwhile", one)
    assert "meanwhile" not in naively(history.metadata, one).refs, "the naive way"
    with pytest.raises(CommitFailedException, match="now referenced: meanwhile"):
        applied(history.metadata, expiry)


def test_a_snapshot_that_somebody_else_expired_meanwhile_is_a_conflict() -> None:
    history = History()
    one, two, _ = history.commits(3)
    expiry = Expiry.of(history.metadata, [one, two])
    with pytest.raises(CommitFailedException, match="already gone: 1"):
        applied(naively(history.metadata, one), expiry)


def test_a_ref_that_is_named_goes_with_its_snapshot() -> None:
    history = History()
    one, _ = history.commits(2)
    history.tag("old", one)
    after = applied(history.metadata, Expiry.of(history.metadata, [one], ["old"]))
    assert list(after.refs) == ["main"]


@pytest.mark.parametrize("moved", ["main", "audit", "release"])
def test_every_ref_must_be_where_it_was(moved: str) -> None:
    history = History()
    one, two = history.commits(2)
    history.point("audit", one)
    history.tag("release", one)
    required = unchanged(history.metadata)
    for requirement in required:
        requirement.validate(history.metadata)
    kind = SnapshotRefType.TAG if moved == "release" else SnapshotRefType.BRANCH
    history.refs[moved] = SnapshotRef(snapshot_id=one if moved == "main" else two, snapshot_ref_type=kind)
    with pytest.raises(CommitFailedException, match=f"{moved} has changed"):
        for requirement in required:
            requirement.validate(history.metadata)


def test_another_table_of_the_name_is_a_conflict() -> None:
    tables = History(), History()
    for table in tables:
        table.commits(1)
    with pytest.raises(CommitFailedException, match="UUID does not match"):
        for requirement in unchanged(tables[0].metadata):
            requirement.validate(tables[1].metadata)


def test_a_table_without_main_must_still_be_without_it() -> None:
    history = History()
    history.commit(branch="audit")
    required = unchanged(history.metadata)
    history.commit()
    with pytest.raises(CommitFailedException, match="main was created concurrently"):
        for requirement in required:
            requirement.validate(history.metadata)


def test_a_rest_catalog_is_sent_iceberg_s_own_updates() -> None:
    history = History()
    one, two, _ = history.commits(3)
    history.tag("old", two)
    expiry = Expiry.of(history.metadata, [two, one], ["old"])
    request = CommitTableRequest(
        identifier={"namespace": ["n"], "name": "t"},
        requirements=unchanged(history.metadata),
        updates=expiry.updates(),
    )
    sent = json.loads(request.model_dump_json())
    assert sent["updates"] == [
        {"action": "remove-snapshot-ref", "ref-name": "old"},
        {"action": "remove-snapshots", "snapshot-ids": [one, two]},
    ]
    assert [r["type"] for r in sent["requirements"]] == [
        "assert-table-uuid",
        "assert-ref-snapshot-id",
        "assert-ref-snapshot-id",
    ]


def test_nothing_to_expire_changes_nothing() -> None:
    history = History()
    history.commits(2)
    expiry = Expiry.of(history.metadata, [])
    assert expiry.is_empty
    assert not expiry.updates()
    assert expiry == Expiry()


def test_what_was_rolled_back_goes_on_being_so_when_its_snapshot_is_forgotten() -> None:
    history = History()
    history.commits(1)
    run = history.commit(run="rolled back")
    history.point("main", 1)
    history.commit(run="there")
    expiry = Expiry.of(history.metadata, [run])
    assert expiry.marks == {"lakehouse.run.rolled back": f"{run}@{NOW}/rolled-back"}
    assert applied(history.metadata, expiry).properties["lakehouse.run.rolled back"] == f"{run}@{NOW}/rolled-back"
