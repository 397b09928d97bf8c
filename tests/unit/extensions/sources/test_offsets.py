"""Positions as text and as ranges, and what is said of a source that lacks rows from a position on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse_assets.declare.row_source import Offsets, SourceState
from lakehouse_assets.extensions.sources.kafka import KafkaTopic
from lakehouse_assets.extensions.sources.source_range import SourceRange

POSITION = Offsets("id", (5, 7))


@given(st.lists(st.integers(min_value=0), min_size=1).map(tuple), st.text(alphabet="abc/+=-1.", min_size=1))
def test_text_is_read_as_it_was_written(offsets: tuple[int, ...], identity: str) -> None:
    assert Offsets.parse(str(Offsets(identity, offsets))) == Offsets(identity, offsets)


def test_a_range_leaves_out_partitions_that_have_nothing() -> None:
    assert POSITION.spans(Offsets("id", (5, 9, 3))) == {1: (7, 9), 2: (0, 3)}


def test_a_position_is_never_ahead_of_what_was_read() -> None:
    assert POSITION.spans(Offsets("id", (1, 1))) == {}


def state(**given: object) -> SourceState:
    return SourceState(**{"identity": "id", "first": (0, 0), "safe": (9, 9), "newest": (9, 9)} | given)


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (state(), None),
        (state(first=(5, 7)), None),
        (state(first=(6, 9)), "3 offsets"),
        (state(identity="other"), "is not the one that was read: it is now other, and was id"),
        (state(newest=(9, 6), safe=(9, 6)), "it was set back"),
        (state(first=(0, 0, 4), safe=(9, 9, 9), newest=(9, 9, 9)), "4 offsets"),
    ],
)
def test_what_a_source_lacks_is_told(found: SourceState, problem: str | None) -> None:
    said = found.problem("kafka:events", POSITION)
    assert (said is None) == (problem is None)
    assert problem is None or problem in str(said)


def test_what_was_purged_is_missed_by_a_table_that_has_nothing() -> None:
    assert "was purged up to [3, 0]" in str(state(first=(3, 0), purged=True).problem("postgres:state", None))


def test_without_a_position_all_that_is_there_is_read() -> None:
    found = state(first=(3, 0))
    assert found.problem("kafka:events", None) is None
    assert found.begin(None) == Offsets("id", (3, 0))


def test_what_is_still_there_begins_at_the_first_offset_of_each_partition_that_lost_some() -> None:
    found = state(first=(6, 0, 2), safe=(9, 9, 9), newest=(9, 9, 9))
    assert found.still_there(POSITION) == Offsets("id", (6, 7, 2))
    assert POSITION.before(found.still_there(POSITION)) == 3
    other = Offsets("other", (1, 1))
    assert found.still_there(other) == other


def moved(lost_from: Offsets | None) -> SourceRange:
    return SourceRange(KafkaTopic("events"), Offsets("id", (6, 7)), Offsets("id", (9, 9)), lost_from)


@pytest.mark.parametrize(
    ("position", "begin"),
    [
        (Offsets("id", (5, 7)), (6, 7)),  # as planned
        (Offsets("id", (8, 9)), (8, 9)),  # another run has moved on since
        (Offsets("id", (3, 7)), (3, 7)),  # the table was rolled back: what it lacks now nobody gave up
        (Offsets("id", (5, 2)), (6, 2)),
        (None, (6, 7)),
    ],
)
def test_a_run_passes_over_what_it_gives_up_and_nothing_else(position: Offsets | None, begin: tuple[int, ...]) -> None:
    assert moved(POSITION).left(position) == Offsets("id", begin)
    assert moved(None).left(position) == (position or Offsets("id", begin))


def test_a_run_says_what_it_gives_up() -> None:
    assert moved(POSITION).given_up == "1 offsets that kafka:events has lost: 5 to 5 of partition 0"
    assert moved(None).given_up == ""
    other = Offsets("other", (5, 7))
    assert moved(POSITION).left(other) == other, "which the proof then refuses"


def test_a_position_behind_a_purge_that_dropped_its_mark_goes_on_with_the_rest() -> None:
    found, marked = state(first=(6, 9), safe=(9, 9)), Offsets(Offsets.marked("id", "mark"), (5, 7))
    assert found.still_there(marked) == Offsets("id", (6, 9))
    assert found.problem("postgres:state", found.still_there(marked)) is None
    assert "it was set back" in str(state().problem("postgres:state", marked))
