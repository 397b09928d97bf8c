"""Nothing that was sent is lost, wherever a process dies, and every rule of the inbox is needed for that.
Each story is told once for each call that anybody makes of anything outside, and the caller dies at it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from lakehouse_assets.declare.options import Pace
from tests.support.queue_model import HOUR, Calls, Mutant, World
from tests.support.twins import twins

Story = Callable[[World], None]


def trickle(world: World) -> None:
    """Messages come while a run works, one of them twice, one that nobody can read."""
    for when, key in ((0, "2024-01-01"), (1, "2024-01-02"), (7, "2024-01-01"), (33, "2024-01-03"), (33, "2024-01-03")):
        world.at(when, lambda key=key: world.arrives(key))  # type: ignore[misc]
    world.at(5, world.poison)


def overlap(world: World) -> None:
    """Somebody materializes partitions slowly while messages come, and publishes what was read before them."""
    days = ["2024-01-01", "2024-01-02"]
    world.at(0, lambda: world.arrives(days[0]))
    world.at(2, lambda: world.by_hand(days, 100.0))
    world.at(30, lambda: world.arrives(days[0]))
    world.at(60, lambda: world.arrives(days[1]))


def together(world: World) -> None:
    """One person's slow run reads the old version, another's quick one the new version, and publishes first."""
    world.at(0, lambda: world.arrives("2024-01-01"))
    world.at(20, lambda: world.by_hand(["2024-01-01"], 60.0))
    world.at(28, lambda: world.arrives("2024-01-01"))
    world.at(32, lambda: world.by_hand(["2024-01-01"], 10.0))


def resumed(world: World) -> None:
    """A run that died is executed again from failure, with what its workers read before; messages came in between."""
    world.resumes = True
    trickle(world)
    world.at(50, lambda: world.arrives("2024-01-02"))
    world.at(65, lambda: world.arrives("2024-01-01"))


def span(world: World) -> None:
    """A range comes, of which each run may have a part, and more for parts of it while they work."""
    world.pace = Pace(latency=timedelta(0), ceiling=3)
    days = world.keys[:5]
    world.at(0, lambda: world.arrives(*days))
    world.at(20, lambda: world.by_hand(days[2:4], 30.0))  # beside the queue's
    world.at(25, lambda: world.arrives(days[0]))
    world.at(32, lambda: world.arrives(*days[1:3]))


def resumed_span(world: World) -> None:
    """A run of a part of a range publishes what is good of it; executed again from failure, it publishes the rest."""
    world.resumes = world.publishes_others = True
    world.bad = frozenset(world.keys[1:2])
    span(world)
    world.at(40, world.heal)


def together_span(world: World) -> None:
    """As together(), with runs of a part of a range."""
    world.pace = Pace(latency=timedelta(0), ceiling=2)
    days = world.keys[:5]
    world.at(0, lambda: world.arrives(*days))
    world.at(20, lambda: world.by_hand(days[:3], 60.0))
    world.at(28, lambda: world.arrives(*days[:3]))
    world.at(32, lambda: world.by_hand(days[:3], 10.0))


def long_run(world: World) -> None:
    """A run of 13 hours, longer than SQS holds any message back."""
    world.at(0, lambda: world.arrives("2024-01-01"))
    world.at(1, lambda: world.by_hand(["2024-01-01"], 13 * HOUR))
    world.at(6 * HOUR, lambda: world.arrives("2024-01-01"))


STORIES: dict[str, Story] = {s.__name__: s for s in (trickle, overlap, together, resumed, span, resumed_span)}


def told(story: Story, *kills: int, done: bool = False, mutant: Mutant | None = None) -> World:
    world = World(Calls(kills, done), mutant or Mutant(), duplicates=0.2)
    story(world)
    world.go()
    return world


def deaths(story: Story, mutant: Mutant | None = None) -> list[World]:
    """The story, once for each call at which somebody may die: before it, and behind it."""
    calls = told(story, mutant=mutant).calls.made
    return [told(story, n, done=done, mutant=mutant) for n in range(calls) for done in (False, True)]


SHORT = [name for name in STORIES if name not in ("resumed", "resumed_span", "span", "overlap", "together")]
LONGER = [name for name in STORIES if name not in SHORT]


@pytest.mark.parametrize("name", [*SHORT, *twins(LONGER, "Has so many calls to die at.", keep=0)])
def test_nothing_is_lost_wherever_somebody_dies(name: str) -> None:
    story = STORIES[name]
    calm = told(story)
    assert not calm.lost()
    for number, world in enumerate(deaths(story)):
        assert not world.lost(), f"case {number}"
        assert world.is_settled(), f"case {number}"
        assert len(world.commits) <= len(calm.commits) + 3, f"case {number}"
        dead = [message.body for message in world.sqs.queues["dead"].messages.values()]
        assert set(dead) == {message.body for message in calm.sqs.queues["dead"].messages.values()}


@pytest.mark.long("Ticks of thirteen hours of a simulated clock.")
def test_a_run_of_thirteen_hours_holds_nothing_up() -> None:
    world = World(Calls(), pace=Pace(floor=3))
    long_run(world)
    world.go()
    assert not world.lost()
    assert world.is_settled()
    assert len(world.commits) <= 2


@pytest.mark.long("Shows that the tests before can fail: for changes of the queue and of its model.")
@pytest.mark.parametrize(
    ("mutant", "story"),
    [
        (Mutant(delete_first=True), trickle),
        (Mutant(covers_late=True), trickle),
        (Mutant(remove_first=True), trickle),
        (Mutant(covers_by_attempt=True), resumed),
        (Mutant(remove_all=True), trickle),
        (Mutant(no_overlap=True), together),
        (Mutant(covers_late=True), span),
        (Mutant(remove_first=True), span),
        (Mutant(covers_by_attempt=True), resumed_span),
        (Mutant(remove_all=True), span),
        (Mutant(no_overlap=True), together_span),
        (Mutant(whole_objects=True), span),
    ],
    ids=lambda value: next((name for name, on in vars(value).items() if on), "") if isinstance(value, Mutant) else "",
)
def test_each_rule_is_needed(mutant: Mutant, story: Story) -> None:
    assert not told(story).lost()
    assert any(world.lost() for world in deaths(story, mutant))


def test_a_backfill_empties_the_inbox_too_if_it_takes_part() -> None:
    def asked(mutant: Mutant) -> list[bool]:
        world = World(Calls(), mutant, pace=Pace(floor=3))
        world.at(0, lambda: world.arrives("2024-01-05"))
        world.at(12, lambda: world.by_hand(["2024-01-04", "2024-01-05"], 5.0))
        world.go()
        assert not world.lost()
        return [run.asked for run in world.runs]

    assert asked(Mutant()) == [False]
    assert asked(Mutant(only_queue=True)) == [False, True]


@pytest.mark.long("Ticks of days of a simulated clock; test_queue.py has one such partition.")
def test_a_partition_that_always_fails_holds_up_none_of_its_neighbours() -> None:
    world = World(Calls(), bad=frozenset({"2024-01-04"}))
    for day in range(1, 9):
        world.at(0, lambda day=day: world.arrives(f"2024-01-{day:02d}"))  # type: ignore[misc]
    world.go()
    assert list(world.lost()) == ["2024-01-04"]
    alone = [run for run in world.runs if run.keys == ("2024-01-04",)]
    assert len(alone) == world.pace.tries
    assert len(world.runs) <= 20
