"""Which actions are taken, in which order, and why the others are not: from healths that a test makes up."""

from __future__ import annotations

from lakehouse_assets.maintenance.findings import MIB, Level
from lakehouse_assets.maintenance.health import TableHealth
from lakehouse_assets.maintenance.policy import LEVELS, SMALL, Action, Plan, plan
from tests.support.healths import partition, table

GIB = 1024 * MIB


def fragmented(identifier: str, *sizes: int, files: int = 12) -> TableHealth:
    """A table whose partitions have so many small files each, of so many MiB together."""
    parts = [
        partition(f"day {n}", values=(n,), files=files, fragments=files, fragment_size=size * MIB, size=size * MIB)
        for n, size in enumerate(sizes)
    ]
    return table(*parts, identifier=identifier)


def planned(*healths: TableHealth, budget: int = GIB, busy: tuple[str, ...] = ()) -> Plan:
    return plan(healths, LEVELS, budget, busy)


def names(action: Action) -> list[str]:
    return [work.partition.name for work in action.work]


def test_what_no_finding_asks_for_is_not_planned() -> None:
    assert planned(fragmented("a.t", 1, files=11), table(snapshots=1000)) == Plan((), ())


def test_a_partition_is_rewritten_once_for_the_first_level_that_asks() -> None:
    ill = partition(
        "one",
        files=20,
        fragments=20,
        fragment_size=MIB,
        undersized=2,
        undersized_size=60 * MIB,
        size=62 * MIB,
        rows=100,
        rows_deleted_at_most=50,
        delete_files=3,
    )
    found = planned(table(ill), budget=GIB)
    actions = [*found.taken, *(left.action for left in found.not_taken)]
    assert [(action.level, names(action)) for action in actions] == [(Level.DELETES, ["one"])]
    # All files of a partition with deletes are read, the delete files go, and one file is left.
    assert (actions[0].size, actions[0].fewer) == (62 * MIB, 20 + 3 - 1)


def test_what_rewrites_nothing_comes_first_then_the_most_files_for_a_byte() -> None:
    dear, cheap, old = fragmented("a.dear", 100), fragmented("b.cheap", 1), table(identifier="c.old", snapshots=5000)
    taken = planned(dear, cheap, old).taken
    assert [(action.table, action.level) for action in taken] == [
        ("c.old", Level.EXPIRE),
        ("b.cheap", Level.FRAGMENTS),
        ("a.dear", Level.FRAGMENTS),
    ]
    assert [action.fewer for action in taken] == [5000, 11, 11]


def test_the_budget_cuts_an_action_at_its_least_rewarding_partitions() -> None:
    found = planned(fragmented("a.t", 40, 10, 30), budget=45 * MIB)
    assert [names(action) for action in found.taken] == [["day 1", "day 2"]]
    (left,) = found.not_taken
    assert names(left.action) == ["day 0"] and left.why == "one run may rewrite 45 MiB in all"


def test_no_table_takes_more_than_its_share() -> None:
    found = planned(fragmented("a.t", 100, 100), fragmented("b.t", 50))
    assert {action.table: action.size for action in found.taken} == {"a.t": 100 * MIB, "b.t": 50 * MIB}
    (left,) = found.not_taken
    assert left.why == "one run may rewrite 128 MiB of one table" and SMALL == 128 * MIB


def test_a_partition_that_is_too_large_for_any_run_is_left_to_spark() -> None:
    found = planned(fragmented("a.t", 129, 1))
    assert [names(action) for action in found.taken] == [["day 1"]]
    (left,) = found.not_taken
    assert names(left.action) == ["day 0"]
    assert left.why == "more than 128 MiB in one partition needs Spark's rewrite_data_files"


def test_what_would_gain_nothing_is_not_planned() -> None:
    # Each is two thirds of a file: together they are more than one, so two stay.
    sizes = partition("one", files=2, undersized=2, undersized_size=700 * MIB, size=700 * MIB)
    assert planned(table(sizes)) == Plan((), ())


def test_a_table_that_a_run_writes_is_not_rewritten_but_its_history_may_be_cut() -> None:
    busy = table(*fragmented("a.t", 1).partitions, identifier="a.t", snapshots=5000)
    found = planned(busy, fragmented("b.t", 1), busy=("a.t",))
    assert [(action.table, action.level) for action in found.taken] == [
        ("a.t", Level.EXPIRE),
        ("b.t", Level.FRAGMENTS),
    ]
    assert [(left.action.level, left.why) for left in found.not_taken] == [
        (Level.FRAGMENTS, "a run that writes the table is queued or under way")
    ]


def test_levels_that_are_not_asked_for_are_left_out() -> None:
    assert plan([fragmented("a.t", 1)], [Level.EXPIRE], GIB) == Plan((), ())
