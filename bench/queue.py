"""The queue on a real daemon: 10,000 messages while processes are killed, the same in peace, a trickle, and no message;
beside it a stock sensor. SQS is tests/support/fakes/sqs_service.py, the workers are tests/support/tiny_worker.py."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import quantiles

from bench.context import Bench, BenchError
from bench.report import Section, Spread, Verdict, at_most
from tests.support.faults import rows_by_day
from tests.support.queue_lake import QUEUE
from tests.support.queue_location import TABLES
from tests.support.queue_services import Kind, QueueServices, queue_services

TABLE = TABLES[0]
DAYS: Sequence[str] = TABLE.partitions.get_partition_keys() if TABLE.partitions else ()
ROWS = 3  # a day, from tiny workers
SEED = 12
DUPLICATES, POISON = 0.05, 0.01
CALM_COMMITS = 6
CALLS_A_MESSAGE = 0.35
TICK_SECONDS = 30.0
MONTH_SECONDS = 30 * 24 * 3600
SECONDS_BETWEEN_TICKS = 10
SETTLE_SECONDS = 900.0
PACE = {"QUEUE_FLOOR": "300", "QUEUE_LATENCY": "30", "QUEUE_TRIES": "20"}
"""A run as soon as 300 partitions wait, or one has waited for 30 s. Many tries, as a kill is no partition's fault."""
PATIENCE = {Kind.SENSOR: 12.0, Kind.DAEMON: 12.0, Kind.RUN: 4.0, Kind.WORKER: 1.5}
"""How many seconds a process may work, at most, before it is killed."""


def measure(bench: Bench) -> list[Section]:
    """Five sections."""
    messages = bench.times(10_000, 600)
    return [
        _unkillable(bench, messages, bench.times(100, 6)),
        _calm(bench, messages, bench.times(60, 10)),
        _stock(bench, bench.times(60, 8), bench.times(12, 2)),
        *_trickle(bench, bench.times(12, 2)),
    ]


# Messages


@dataclass(frozen=True)
class Traffic:
    """bodies: all messages, shuffled. poison: those of them that nobody can act on."""

    bodies: Sequence[str]
    poison: Sequence[str]

    @classmethod
    def of(cls, messages: int, chance: random.Random) -> Traffic:
        """A twentieth of them comes twice, a hundredth is poison, and the others ask for each day about as often."""
        bad = [json.dumps({"table": "demo.none", "partitions": [str(n)]}) for n in range(round(messages * POISON))]
        twice = round(messages * DUPLICATES)
        good = [_asking(DAYS[n % len(DAYS)]) for n in range(messages - len(bad) - twice)]
        bodies = [*good, *bad, *chance.choices(good, k=twice)]
        chance.shuffle(bodies)
        return cls(bodies, bad)

    @property
    def days(self) -> set[str]:
        return set(DAYS[: len(self.bodies) - len(self.poison)])

    def parts(self, count: int) -> list[Sequence[str]]:
        """All, in as many parts."""
        return [self.bodies[n::count] for n in range(count)]


def _asking(day: str) -> str:
    return json.dumps({"table": TABLE.identifier, "partitions": [day]})


# Kills


@dataclass
class Hunter:
    """Kills one kind, each time a random while after there is one that works."""

    services: QueueServices
    kind: Kind
    chance: random.Random
    due: float | None = None
    receives: int = 0

    def look(self, now: float) -> bool:
        """Whether it killed one. now: seconds of time.monotonic()."""
        if not self._is_there():
            self.due = None
            return False
        if self.due is None:
            self.due = now + self.chance.uniform(0, PATIENCE[self.kind])
        if now < self.due or not self.services.kill(self.kind):
            return False
        self.due, self.receives = None, _receives(self.services)
        return True

    def _is_there(self) -> bool:
        """A service works again when there was a tick."""
        if self.kind in (Kind.SENSOR, Kind.DAEMON) and _receives(self.services) <= self.receives:
            return False
        return bool(self.services.pids(self.kind))


def _hunt(services: QueueServices, chance: random.Random, kills: int) -> Iterator[int]:
    """Kill so many; yields after each."""
    hunters = [Hunter(services, kind, chance) for kind in Kind]
    while (done := services.killed.total()) < kills:
        for hunter in hunters:
            if done < kills and hunter.look(time.monotonic()):
                yield (done := services.killed.total())
        time.sleep(0.1)


# What is found


@dataclass(frozen=True)
class Found:
    """What was there in the end. missing, wrong: days without rows, and with wrong ones. calls: SQS.
    seconds: from the last message until nothing waited. ticks: seconds of each."""

    commits: int
    runs: Counter[str]
    missing: int
    wrong: int
    dead: Sequence[tuple[str, str]]
    calls: int
    seconds: float
    ticks: Sequence[float] = field(repr=False)

    @classmethod
    def of(cls, services: QueueServices, days: set[str], seconds: float) -> Found:
        rows = rows_by_day(services.lake, TABLE) if services.snapshots() else {}
        return cls(
            commits=services.snapshots(),
            runs=Counter(run.status.value for run in services.lake.instance.get_runs()),
            missing=len(days - rows.keys()),
            wrong=sum(count != ROWS for count in rows.values()) + len(rows.keys() - days),
            dead=services.dead(),
            calls=services.service.calls.total(),
            seconds=seconds,
            ticks=_tick_seconds(services),
        )


def _receives(services: QueueServices) -> int:
    """Each tick begins with one."""
    return services.service.calls["ReceiveMessage"]


def _tick_seconds(services: QueueServices) -> list[float]:
    """How long each tick took that ended."""
    instance = services.lake.instance
    ticks = [
        tick
        for state in instance.all_instigator_state()
        for tick in instance.get_ticks(state.instigator_origin_id, state.selector_id)
    ]
    return [tick.end_timestamp - tick.timestamp for tick in ticks if tick.end_timestamp]


def _until(services: QueueServices, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SETTLE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise BenchError(f"it never came; {services.state()}")
        time.sleep(0.2)


def _settle(services: QueueServices) -> float:
    """Seconds until nothing waits anywhere."""
    started = time.monotonic()
    _until(services, services.is_settled)
    return time.monotonic() - started


def _percentile(values: Sequence[float], percent: int) -> float:
    return quantiles(values, n=100, method="inclusive")[percent - 1] if len(values) > 1 else sum(values)


# The sections


def _unkillable(bench: Bench, messages: int, kills: int) -> Section:
    chance = random.Random(SEED)
    traffic = Traffic.of(messages, chance)
    with queue_services(bench.home / "unkillable", **PACE) as services:
        started = time.monotonic()
        first, *later = traffic.parts(kills + 1)
        services.send(*first)
        for part, _ in zip(later, _hunt(services, chance, kills), strict=True):
            services.send(*part)
        hunted = time.monotonic() - started
        found = Found.of(services, traffic.days, _settle(services))
        killed = dict(services.killed)
    by_kind = ", ".join(f"{count} {kind}" for kind, count in sorted(killed.items()))
    return Section(
        f"The unkillable queue: {messages:,} messages for {len(traffic.days)} partitions, {kills} SIGKILLs",
        ("", ""),
        [("killed", by_kind), ("seconds of traffic and kills", f"{hunted:.0f}"), *_rows(found)],
        [
            *_sound(traffic, found),
            at_most(f"commits, {CALM_COMMITS} and one for each kill", found.commits, CALM_COMMITS + kills),
            at_most("SQS calls a message", found.calls / messages, CALLS_A_MESSAGE),
        ],
        [
            f"{DUPLICATES:.0%} of the messages come twice, {POISON:.0%} are poison. They come in equal parts, one "
            "after each kill, so that traffic lasts as long as kills do. What is killed next, and when, is random "
            f"(seed {SEED}), but a service is killed again only when it has worked in between.",
        ],
    )


def _calm(bench: Bench, messages: int, seconds: int) -> Section:
    traffic = Traffic.of(messages, random.Random(SEED))
    with queue_services(bench.home / "calm", **PACE) as services:
        for part in traffic.parts(seconds):
            services.send(*part)
            time.sleep(1)
        found = Found.of(services, traffic.days, _settle(services))
    return Section(
        f"The same without kills: {messages:,} messages within {seconds} s",
        ("", ""),
        _rows(found),
        [
            *_sound(traffic, found),
            at_most("commits", found.commits, CALM_COMMITS),
            at_most("SQS calls a message", found.calls / messages, CALLS_A_MESSAGE),
            at_most("p99 of a tick", _percentile(found.ticks, 99), TICK_SECONDS, " s"),
        ],
        [f"A run is asked for once {PACE['QUEUE_FLOOR']} partitions wait, or one for {PACE['QUEUE_LATENCY']} s."],
    )


def _rows(found: Found) -> list[tuple[str, object]]:
    runs = ", ".join(f"{count} {status.lower()}" for status, count in sorted(found.runs.items()))
    return [
        ("runs", runs),
        ("commits", found.commits),
        ("partitions missing, wrong", f"{found.missing}, {found.wrong}"),
        ("dead letters", len(found.dead)),
        ("SQS calls", f"{found.calls:,}"),
        ("ticks, seconds of each", f"{len(found.ticks)}, {Spread.of(found.ticks)}"),
        ("seconds from the last message to nothing waiting", f"{found.seconds:.0f}"),
    ]


def _sound(traffic: Traffic, found: Found) -> list[Verdict]:
    bodies = Counter(body for body, _ in found.dead)
    unreasoned = sum(not reason for _, reason in found.dead)
    exact = set(bodies) == set(traffic.poison)
    said = (
        f"{len(bodies)} of {len(traffic.poison)}, {bodies.total() - len(bodies)} twice, {unreasoned} without a reason"
    )
    gone = f"{found.missing} missing, {found.wrong} wrong"
    return [
        Verdict("every partition asked for is in the table, with its rows once", gone, not found.missing + found.wrong),
        Verdict("all poison, and nothing else, is in the dead-letter queue", said, exact and not unreasoned),
    ]


def _stock(bench: Bench, messages: int, kills: int) -> Section:
    chance = random.Random(SEED)
    days = chance.sample(DAYS, messages)
    with queue_services(bench.home / "stock", "bench.queue_stock") as services:
        services.send(*map(_asking, days))
        _until(services, lambda: len(services.fake.queues[QUEUE].messages) < messages)
        for _ in _hunt(services, chance, kills):
            if services.is_settled():
                break
        started = time.monotonic()
        _until(services, lambda: _is_over(services))
        found = Found.of(services, set(days), time.monotonic() - started)
        killed = services.killed.total()
    return Section(
        f"Beside it: delete on receipt, a run a message; {messages} messages, {killed} SIGKILLs",
        ("", ""),
        [*_rows(found)[:2], ("messages lost", found.missing), *_rows(found)[-2:]],
        (),
        [f"Only {messages} messages, each for a partition of its own, as a run for each of 10,000 would take a day."],
    )


def _is_over(services: QueueServices) -> bool:
    """Whether nothing is left to do, and two ticks later still: what this sensor has received is nowhere but in its
    process, until Dagster has the runs."""
    if not services.is_settled():
        return False
    receives = _receives(services)
    _until(services, lambda: _receives(services) >= receives + 2)
    return services.is_settled()


def _trickle(bench: Bench, messages: int) -> list[Section]:
    with queue_services(bench.home / "trickle", QUEUE_FLOOR="1") as services:
        _until(services, lambda: _receives(services) >= bench.times(6, 2))
        idle = services.service.calls.total() / _receives(services)
        sent = {}
        for day in DAYS[: 2 * messages : 2]:
            sent[day] = time.time()
            services.send(_asking(day))
            time.sleep(20)
        _settle(services)
        steps = _steps(services, sent)
    month = idle * MONTH_SECONDS / SECONDS_BETWEEN_TICKS
    return [
        Section(
            f"A trickle: a message each 20 s, {messages} of them; light workers",
            ("from", "p50, seconds", "p99, seconds"),
            [(step, *(f"{_percentile(found, p):.1f}" for p in (50, 99))) for step, found in steps.items()],
            (),
            ["The sensor's ticks are 10 s apart, and Dagster's daemon looks for queued runs each 5 s."],
        ),
        Section(
            "No message",
            ("", ""),
            [("SQS calls a tick", f"{idle:.1f}"), ("SQS calls a month, at a tick each 10 s", f"{month:,.0f}")],
        ),
    ]


def _steps(services: QueueServices, sent: dict[str, float]) -> dict[str, list[float]]:
    """By part of the way, the seconds of each message. sent: by day."""
    instance = services.lake.instance
    records = {record.dagster_run.run_id: record for record in instance.get_run_records()}
    found: dict[str, list[float]] = {
        "sent, until the daemon created the run": [],
        "created, until its process began": [],
        "sent, until the rows could be queried": [],
    }
    for event in instance.fetch_materializations(TABLE.key, limit=10 * len(sent)).records:
        shown, record = event.asset_materialization, records[event.run_id]
        if shown and shown.partition in sent and "message_end_to_end_seconds" in shown.metadata:
            created = record.create_timestamp.timestamp()
            seconds = float(str(shown.metadata["message_end_to_end_seconds"].value))
            times = (created - sent[shown.partition], (record.start_time or created) - created, seconds)
            for step, took in zip(found, times, strict=True):
                found[step].append(took)
    return found
