"""Positions as text and as ranges, and what is said of a source that lacks rows from a position on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse_assets.sources.offsets import Offsets
from lakehouse_assets.sources.row_source import SourceState

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
        (state(identity="other"), "another one than was read: other now, id then"),
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
