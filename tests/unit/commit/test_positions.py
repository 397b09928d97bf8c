"""How far a table has read its inputs, by histories of metadata alone."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import load_file_io
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.commit.positions import (
    CHERRY_PICKED,
    POSITIONS,
    TRACKED_INPUTS,
    PositionUpdate,
    carriers,
    positions_of,
)
from lakehouse_assets.errors import StageAgain
from lakehouse_assets.wire.work import ReadOn
from tests.support.histories import History


def moved(history: History, ago: float = 0, branch: str = "main", **to: str) -> int:
    """A commit that moves positions, as a run's."""
    moves, metadata = PositionUpdate(to), history.metadata
    history.properties |= moves.properties(metadata)
    return history.commit(ago, branch=branch, **moves.summary(metadata))


def without(metadata: TableMetadata, *gone: int) -> TableMetadata:
    """As Iceberg's Java expires: children go on naming their parents."""
    left = [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id not in gone]
    return metadata.model_copy(update={"snapshots": left})


def positions(history: History) -> dict[str, str]:
    return dict(positions_of(history.metadata).positions)


@pytest.fixture
def history() -> History:
    """Two moves, each of another input, then a commit of somebody else's."""
    history = History()
    history.commit(9)
    moved(history, 8, a="1@u")
    moved(history, 7, b="5@u")
    history.commit(6)
    return history


def test_the_nearest_ancestor_that_has_positions_has_all_of_them(history: History) -> None:
    assert positions(history) == {"a": "1@u", "b": "5@u"}
    assert carriers(history.metadata) == [4, 3]
    moved(history, 1, a="2@u")
    assert positions(history) == {"a": "2@u", "b": "5@u"}


def test_a_commit_that_moves_none_copies_them(history: History) -> None:
    said = PositionUpdate().summary(history.metadata)
    assert json.loads(said[POSITIONS]) == {"a": "1@u", "b": "5@u"}
    assert PositionUpdate().properties(history.metadata) == {}


def test_a_table_that_reads_no_changes_says_nothing() -> None:
    history = History()
    history.commit()
    assert PositionUpdate().summary(history.metadata) == {}
    assert PositionUpdate().properties(history.metadata) == {}
    assert carriers(history.metadata) == []


def test_a_rollback_goes_back(history: History) -> None:
    history.point("main", 2)
    found = positions_of(history.metadata)
    assert found.positions == {"a": "1@u"}
    assert found.unknown.keys() == {"b"}, "it was moved once, and nobody knows from where"


def test_a_branch_moves_nothing_on_main(history: History) -> None:
    history.point("audit", 4)
    moved(history, 1, branch="audit", a="9@u")
    assert positions(history)["a"] == "1@u"


def test_positions_that_expired_are_unknown_and_not_the_beginning(history: History) -> None:
    found = positions_of(without(history.metadata, 1, 2, 3))
    assert found.positions == {}
    assert found.unknown.keys() == {"a", "b"}


def test_a_cherry_picked_move_makes_them_unknown_until_they_are_read_anew(history: History) -> None:
    history.point("other", 3)
    source = moved(history, 5, branch="other", a="3@u")
    history.commit(4, **{CHERRY_PICKED: str(source)})
    assert positions_of(history.metadata).unknown.keys() == {"a", "b"}
    history.commit(3, **PositionUpdate().summary(history.metadata))  # a rewrite
    assert positions_of(history.metadata).unknown.keys() == {"a", "b"}
    moved(history, 2, a="4@u")
    assert positions(history) == {"a": "4@u"}


def test_what_was_cherry_picked_from_others_is_no_move(history: History) -> None:
    history.point("other", 3)
    source = history.commit(5, branch="other")
    head = history.commit(4, **{CHERRY_PICKED: str(source)})
    assert positions(history) == {"a": "1@u", "b": "5@u"}
    assert carriers(history.metadata) == [head, source, 4, 3], "without its source nobody knows that"


def test_what_was_cherry_picked_from_what_has_expired_may_have_been_a_move(history: History) -> None:
    history.point("other", 3)
    source = moved(history, 5, branch="other", a="3@u")
    history.commit(4, **{CHERRY_PICKED: str(source)})
    assert positions_of(without(history.metadata, source)).unknown.keys() == {"a", "b"}


def table_of(metadata: TableMetadata) -> Table:
    """A table in memory: positions open nothing."""
    return Table(("demo", "t"), metadata, "", load_file_io(), NoopCatalog("none"))


@pytest.mark.parametrize(
    ("since", "is_refused"),
    [({"a": "1@u"}, False), ({"a": "0@u"}, True), ({}, True), ({"a": "1@u", "b": "0@u"}, False)],
)
def test_only_positions_that_a_run_moves_must_be_where_it_found_them(
    history: History, since: Any, is_refused: bool
) -> None:
    moves = PositionUpdate({"a": "2@u"}, ReadOn(since))
    if is_refused:
        with pytest.raises(StageAgain, match="read further in a"):
            moves.refuse(table_of(history.metadata))
    else:
        moves.refuse(table_of(history.metadata))


def test_a_first_move_is_refused_where_another_ones_position_was_lost_since(history: History) -> None:
    """It may have moved the same rows."""
    lost = without(history.metadata, 2, 3)
    with pytest.raises(StageAgain, match="from the beginning to where nobody knows"):
        PositionUpdate({"a": "1@u"}).refuse(table_of(lost))
    # It reads from the beginning, as somebody has said.
    PositionUpdate({"a": "2@u"}, positions_of(lost)).refuse(table_of(lost))


def test_each_input_is_named_once(history: History) -> None:
    named = replace(PositionUpdate(), to={"c": "1@u"}).properties(history.metadata)
    assert named == {TRACKED_INPUTS: "a,b,c"}
