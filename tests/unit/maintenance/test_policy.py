"""Which actions are taken, in which order, and why the others are not: from healths that a test makes up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from lakehouse_assets.declare.options import Level, Maintenance
from lakehouse_assets.maintenance.health.health import TableHealth
from lakehouse_assets.maintenance.level import MIB, Action, Engine
from lakehouse_assets.maintenance.levels import LEVELS
from lakehouse_assets.maintenance.policy import SPEED, START, Plan, Policy, candidates, plan
from lakehouse_assets.maintenance.rewrite_levels import SMALL
from lakehouse_assets.run.in_flight import Flight, Keys
from tests.support.healths import partition, table

GIB = 1024 * MIB
NOW = 1_700_000_000.0
Writing = Mapping[str, Sequence[Flight]]
BY_ITSELF = [level.name for level in LEVELS if level.by_itself]


def fragmented(identifier: str, *sizes: int, files: int = 12, **numbers: Any) -> TableHealth:
    """A table whose partitions have so many small files each, of so many MiB together."""
    parts = [
        partition(
            f"day {n}",
            values=(n,),
            files=files,
            fragments=files,
            fragment_size=size * MIB,
            size=size * MIB,
            written_ms=0,
        )
        for n, size in enumerate(sizes)
    ]
    return table(*parts, identifier=identifier, **numbers)


def planned(
    *healths: TableHealth,
    budget: int = GIB,
    writing: Writing | None = None,
    levels: Collection[str] = BY_ITSELF,
    tables: Mapping[str, Maintenance] | None = None,
    **options: bool,
) -> Plan:
    policy = Policy([level for level in LEVELS if level.name in levels], tables or {}, **options)
    found = [candidates(health, policy, (writing or {}).get(health.identifier, ()), NOW) for health in healths]
    return plan([candidate for of_table in found for candidate in of_table], policy, budget)


def names(action: Action) -> list[str]:
    return [partition.name for partition in action.partitions]


def left(found: Plan) -> list[tuple[str, str]]:
    return [(of.action.level.name, of.why) for of in found.not_taken]


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
    found = planned(table(ill))
    actions = [*found.taken, *(of.action for of in found.not_taken)]
    assert [(action.level.name, names(action)) for action in actions] == [(Level.DELETES, ["one"])]
    # All files of a partition with deletes are read, the delete files go, and one file is left.
    gain = actions[0].gain
    assert (actions[0].size, gain.files, gain.delete_files) == (62 * MIB, 20 - 1, 3)
    # Opening a file counts as 4 MiB, and half of the bytes need not be read any more.
    assert gain.scan_work == (19 + 3) * 4 * MIB + 31 * MIB


def test_a_shorter_history_comes_first_then_what_a_scan_is_spared_for_a_second() -> None:
    dear, cheap, old = fragmented("a.dear", 100), fragmented("b.cheap", 1), table(identifier="c.old", snapshots=5000)
    taken = planned(dear, cheap, old).taken
    assert [(action.table, action.level.name) for action in taken] == [
        ("c.old", Level.EXPIRE),
        ("b.cheap", Level.FRAGMENTS),
        ("a.dear", Level.FRAGMENTS),
    ]
    assert taken[0].gain.snapshots == 5000
    assert [action.gain.files for action in taken[1:]] == [11, 11]
    assert taken[2].seconds - taken[1].seconds == pytest.approx(99 * MIB / SPEED)


def test_a_table_of_more_weight_comes_first() -> None:
    heavy = {"a.dear": Maintenance(weight=200)}
    taken = planned(fragmented("a.dear", 100), fragmented("b.cheap", 1), tables=heavy).taken
    assert [action.table for action in taken] == ["a.dear", "b.cheap"]


def test_the_budget_is_spent_on_the_most_rewarding_partitions_of_all_tables() -> None:
    found = planned(fragmented("a.t", 40, 10), fragmented("b.t", 30, 5), budget=50 * MIB)
    assert {action.table: names(action) for action in found.taken} == {"a.t": ["day 1"], "b.t": ["day 1", "day 0"]}
    (over,) = found.not_taken
    assert names(over.action) == ["day 0"]
    assert "budget" in over.why
    assert "50 MiB" in over.why


def test_what_does_not_fit_leaves_room_for_what_does() -> None:
    found = planned(fragmented("a.t", 40, files=400), fragmented("b.t", 30), budget=35 * MIB)
    assert [action.table for action in found.taken] == ["b.t"]


def test_no_table_takes_more_than_its_share_of_the_runs_own_process() -> None:
    first, second = planned(fragmented("a.t", 100, 100)).taken
    assert [(a.engine, a.size) for a in (first, second)] == [(Engine.PYTHON, 100 * MIB), (Engine.SPARK, 100 * MIB)]
    assert second.reason.endswith("; by Spark: more than 128 MiB of the table are rewritten")
    assert SMALL == 128 * MIB
    assert second.seconds > START[Engine.SPARK] + 100 * MIB / SPEED, "its start is part of what it takes"
    manifests = table(identifier="a.t", data_manifests=500, manifest_size=129 * MIB)
    (action,) = planned(manifests).taken
    assert (action.level.name, action.engine) == (Level.MANIFESTS, Engine.PYTHON), (
        "manifests are rewritten in little memory"
    )


def test_what_is_larger_than_the_budget_says_so() -> None:
    found = planned(fragmented("a.t", 10), budget=MIB)
    why = "it takes 10 MiB, more than the budget of 1 MiB: start a run by hand with a larger budget_gib"
    assert found.taken == ()
    assert left(found) == [(Level.FRAGMENTS, why)]


def equality() -> TableHealth:
    health = fragmented("a.t", 1, 2)
    first, second = health.partitions
    return replace(health, partitions=(replace(first, needs_spark=("equality deletes apply to its files",)), second))


@pytest.mark.parametrize(
    ("health", "needs", "reason"),
    [
        (fragmented("a.t", 129, 1), "day 0", "more than 128 MiB are to be rewritten"),
        (equality(), "day 0", "equality deletes apply to its files"),
    ],
)
def test_what_the_run_can_not_rewrite_itself_is_sparks_and_says_why(
    health: TableHealth, needs: str, reason: str
) -> None:
    taken = {action.engine: action for action in planned(health).taken}
    assert {engine: names(action) for engine, action in taken.items()} == {
        Engine.SPARK: [needs],
        Engine.PYTHON: ["day 1"],
    }
    assert taken[Engine.SPARK].reason == f"12 small files in 1 partition; by Spark: {reason}"


def test_a_table_that_only_spark_can_write_is_wholly_sparks() -> None:
    bloom = fragmented("a.t", 1, needs_spark=("it has bloom filters",))
    assert [action.engine for action in planned(bloom).taken] == [Engine.SPARK]


def test_what_would_gain_nothing_is_not_planned() -> None:
    # Each is two thirds of a file: together they are more than one, so two stay.
    sizes = partition("one", files=2, undersized=2, undersized_size=700 * MIB, size=700 * MIB)
    assert planned(table(sizes)) == Plan((), ())


def by_a_run(table: str, keys: Keys) -> Writing:
    return {table: [Flight(keys, "run r1")]}


@pytest.mark.parametrize(
    ("writing", "taken", "why"),
    [
        (by_a_run("a.t", {"day 0"}), ["day 1"], "a run that writes to it is queued or running: run r1"),
        (by_a_run("a.t", None), [], "a run that writes to it is queued or running: run r1"),
        (by_a_run("a.t", {"day 7"}), ["day 0", "day 1"], None),
        (by_a_run("b.t", None), ["day 0", "day 1"], None),
    ],
)
def test_only_the_partitions_that_a_run_writes_are_left(writing: Writing, taken: list[str], why: str | None) -> None:
    found = planned(fragmented("a.t", 1, 2, snapshots=5000), writing=writing)
    assert [name for action in found.taken for name in names(action)] == taken
    assert found.taken[0].level.name == Level.EXPIRE, "its history may be cut all the same"
    assert left(found) == ([(Level.FRAGMENTS, why)] if why else [])


def test_a_partition_without_a_key_is_left_while_any_run_writes_its_table() -> None:
    health = fragmented("a.t", 1)
    (one,) = health.partitions
    found = planned(replace(health, partitions=(replace(one, key=None),)), writing=by_a_run("a.t", {"day 9"}))
    why = "a run that writes to it is queued or running: run r1"
    assert found.taken == ()
    assert left(found) == [(Level.FRAGMENTS, why)]


def test_a_partition_that_was_just_written_is_left_for_later_unless_a_person_asks() -> None:
    def written(minutes: float) -> TableHealth:
        health = fragmented("a.t", 1)
        at = int((NOW - 60 * minutes) * 1000)
        return replace(health, partitions=tuple(replace(p, written_ms=at) for p in health.partitions))

    assert left(planned(written(14))) == [(Level.FRAGMENTS, "written less than 15 minutes ago")]
    assert planned(written(16)).not_taken == ()
    assert planned(written(14), patient=False).not_taken == ()
    restless = {"a.t": Maintenance(quiet_period=timedelta(minutes=2))}
    assert planned(written(14), tables=restless).not_taken == ()


@pytest.mark.parametrize(
    "of_optimizer",
    [
        lambda health: (health, {"a.t": Maintenance(managed=True)}),
        lambda health: (replace(health, location="s3://0f1e2d--table-s3/data"), {}),
    ],
)
def test_what_the_catalogs_own_optimizer_does_is_left_to_it(
    of_optimizer: Callable[[TableHealth], tuple[TableHealth, dict[str, Maintenance]]],
) -> None:
    health, tables = of_optimizer(fragmented("a.t", 1, snapshots=5000, data_manifests=500))
    found = planned(health, tables=tables)
    assert [action.level.name for action in found.taken] == [Level.MANIFESTS]
    reason = "the catalog's own optimizer does it"
    assert left(found) == [(Level.FRAGMENTS, reason), (Level.EXPIRE, reason)]


def test_a_level_that_the_owner_leaves_out_is_left_and_said() -> None:
    tables = {"a.t": Maintenance(without=[Level.FRAGMENTS])}
    found = planned(fragmented("a.t", 1), tables=tables)
    assert found.taken == ()
    assert left(found) == [(Level.FRAGMENTS, "the table's declaration leaves this level out")]


@pytest.mark.parametrize("version", [1, 3])
def test_a_table_of_another_format_is_left_whatever_would_be_committed_to_it(version: int) -> None:
    health = fragmented("a.t", 1, snapshots=5000, data_manifests=500, is_sorted=True, format_version=version)
    found = planned(health, levels=list(Level))
    assert [action.level.name for action in found.taken] == [Level.COLLECT], "which commits nothing"
    reason = "its format version is not 2, the only one that can be written"
    assert left(found) == [(level, reason) for level in (Level.FRAGMENTS, Level.MANIFESTS, Level.EXPIRE)]


def test_levels_that_are_not_asked_for_are_left_out() -> None:
    assert planned(fragmented("a.t", 1), levels=[Level.EXPIRE]) == Plan((), ())


def test_rewrites_come_before_manifests_and_these_before_the_collection() -> None:
    health = fragmented("a.t", 1, snapshots=5000, data_manifests=500, manifest_size=MIB, is_sorted=True)
    asked = planned(health, levels=list(Level))
    assert [action.level.name for action in asked.taken] == ["expire", "fragments", "manifests", "collect"]
    assert asked.taken[2].gain.manifests == 499
    assert asked.taken[2].size == MIB


def test_whole_partitions_are_sorted_by_spark_where_somebody_asks() -> None:
    well = partition("day 0", files=1, size=GIB)
    health = table(well, identifier="a.t", is_sorted=True)
    assert planned(health) == Plan((), ())
    (action,) = planned(health, levels=[Level.SORT], budget=2 * GIB).taken
    assert (action.engine, action.size) == (Engine.SPARK, GIB)
    assert planned(replace(health, is_sorted=False), levels=[Level.SORT]) == Plan((), ())


def test_the_start_of_an_engine_counts_against_little_work() -> None:
    """75 seconds for one MiB; the same files in the run's own process are worth more."""
    small = fragmented("a.t", 1, needs_spark=("it has bloom filters",))
    found = planned(small, fragmented("b.t", 10))
    assert [action.table for action in found.taken] == ["b.t", "a.t"]


@pytest.mark.parametrize(("expirable", "gain"), [(0, None), (3, 3), (None, 5)])
def test_an_expiry_promises_what_it_can_take(expirable: int | None, gain: int | None) -> None:
    asked = planned(table(snapshots=5, metadata_size=1000, expirable=expirable), levels=[Level.EXPIRE], force=True)
    assert [action.gain.snapshots for action in asked.taken] == ([] if gain is None else [gain])
