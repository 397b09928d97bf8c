"""The bound of deleted rows holds whatever the delete files really delete, and is exact where nothing overlaps."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from lakehouse_assets.maintenance.health.partition_health import rows_deleted_at_most

Aged = list[tuple[int, int]]
"""Files: (data sequence number, rows)."""
AGES = st.integers(1, 6)
FILES = st.lists(st.tuples(AGES, st.integers(0, 20)), max_size=6)


def bound(data: Aged, positions: Aged, equality: list[int], anywhere: int = -1) -> int:
    ages: Counter[int] = Counter()
    for age, rows in data:
        ages[age] += rows
    return rows_deleted_at_most(ages, positions, max([*equality, anywhere]))


@settings(max_examples=200, deadline=None)
@given(data=FILES, positions=FILES, equality=st.lists(AGES, max_size=2), anywhere=st.just(-1) | AGES, draw=st.data())
def test_it_is_never_below_what_is_deleted(
    data: Aged, positions: Aged, equality: list[int], anywhere: int, draw: st.DataObject
) -> None:
    """Each delete file deletes as the spec allows it, the worst case included."""
    rows = {(file, row): age for file, (age, count) in enumerate(data) for row in range(count)}
    deleted = set()
    for age, count in positions:
        within = sorted(row for row, born in rows.items() if born <= age)
        deleted |= set(draw.draw(st.permutations(within))[:count])
    for age in [*equality, anywhere]:
        deleted |= {row for row, born in rows.items() if born < age}
    assert len(deleted) <= bound(data, positions, equality, anywhere) <= len(rows)


def test_position_deletes_that_are_older_than_all_data_delete_nothing() -> None:
    assert bound([(5, 10), (6, 10)], [(4, 8)], []) == 0
    assert bound([(5, 10), (6, 10)], [(5, 8)], []) == 8
    assert bound([(5, 10), (6, 10)], [(5, 8), (4, 3), (6, 2)], []) == 10


def test_equality_deletes_may_delete_all_rows_that_are_older_and_none_else() -> None:
    assert bound([(5, 10), (6, 20)], [], [5]) == 0
    assert bound([(5, 10), (6, 20)], [], [6]) == 10
    assert bound([(5, 10), (6, 20)], [], [7, 2]) == 30
    assert bound([(5, 10), (6, 20)], [], [], anywhere=6) == 10


def test_it_is_never_more_than_there_is() -> None:
    assert bound([(1, 10)], [(2, 8), (3, 8)], []) == 10
    assert bound([], [(2, 8)], [3]) == 0
