"""A model of the queue with a virtual clock: SQS, the sensor, runs, and deaths at any call of anything outside.
The sensor's tick and a run's part in the inbox are the real code; what runs read and publish is a dictionary."""

from __future__ import annotations

import heapq
import io
import json
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import dagster as dg

from lakehouse_assets.declare.options import Pace
from lakehouse_assets.declare.table import Table
from lakehouse_assets.drive.chunks import Chunk
from lakehouse_assets.extensions.queue.decide import Lane, Request, Waiting
from lakehouse_assets.extensions.queue.hook import Covered, QueueRecords, RunQueue, covered
from lakehouse_assets.extensions.queue.inbox import Inbox, RunInbox, RunMessages, waiting_for
from lakehouse_assets.extensions.queue.intake import Intake
from lakehouse_assets.extensions.queue.messages import Routes
from lakehouse_assets.extensions.queue.source import Source, SqsQueue
from lakehouse_assets.extensions.queue.strikes import EndedRun, MemoryStore
from lakehouse_assets.extensions.queue.tick import QueueTick
from lakehouse_assets.run.plan import Plans
from lakehouse_assets.wire.work import encode
from tests.support.fakes.sqs_service import FakeSqs
from tests.support.tables import numbers, run_plan

START = 1_700_000_000.0
TICK = 10.0
HOUR = 3600.0
REAPED_AFTER = 30.0
Key = str


class Killed(BaseException):
    """The process that made the call is gone."""


@dataclass
class Calls:
    """Calls of anything outside of a process. kills: which of them, by number, the process does not outlive. done:
    whether such a call is done nevertheless."""

    kills: Collection[int] = ()
    done: bool = False
    made: int = 0

    def __call__(self, do: Callable[[], Any]) -> Any:
        self.made += 1
        if self.made - 1 not in self.kills:
            return do()
        if self.done:
            do()
        raise Killed


@dataclass(eq=False)  # hashable, as the others are
class MemoryObjects:
    """As LocalObjects, without a disk."""

    calls: Calls
    contents: dict[str, bytes] = field(default_factory=dict)

    def write(self, name: str, content: bytes) -> None:
        self.calls(lambda: self.contents.__setitem__(name, content))

    def read(self, name: str) -> bytes:
        def read() -> bytes:
            if name not in self.contents:
                raise FileNotFoundError(name)
            return self.contents[name]

        return self.calls(read)  # type: ignore[no-any-return]

    def names(self) -> list[str]:
        return self.calls(lambda: sorted(self.contents))  # type: ignore[no-any-return]

    def remove(self, names: Sequence[str]) -> None:
        for name in names:
            self.calls(lambda: self.contents.pop(name, None))  # noqa: B023

    def delete(self, folder: str) -> None:
        raise NotImplementedError


class MemoryIO:
    """As much of a FileIO as receipts need, over the same memory."""

    def __init__(self, objects: MemoryObjects) -> None:
        self.objects = objects

    def new_input(self, location: str) -> Any:
        return _File(self.objects, location)

    new_output = new_input


@dataclass
class _File:
    objects: MemoryObjects
    location: str

    def open(self) -> io.BytesIO:
        return io.BytesIO(self.objects.read(self.location))

    @contextmanager
    def create(self, overwrite: bool) -> Iterator[io.BytesIO]:
        stream = io.BytesIO()
        yield stream
        self.objects.write(self.location, stream.getvalue())


class CountedSqs:
    """The fake, each of its calls counted."""

    def __init__(self, sqs: FakeSqs, calls: Calls) -> None:
        self._sqs, self._calls = sqs, calls

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._sqs, name)
        return lambda **arguments: self._calls(lambda: method(**arguments))


@dataclass
class ModelRun:
    """token: its own id, or that of the run that it resumes. staged: by partition the version that its workers read.
    asked: whether the queue asked for it."""

    id: str
    token: str
    keys: tuple[Key, ...]
    asked: bool
    seconds: float
    run_key: str = ""
    status: str = "STARTED"
    staged: dict[Key, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Commit:
    """To the table: by whom, and of which versions. One run has several where it publishes what is good of it."""

    token: str
    versions: Mapping[Key, int]


@dataclass
class Mutant:
    """Rules that are broken, by the name of what is done instead."""

    delete_first: bool = False
    covers_late: bool = False
    remove_first: bool = False
    covers_by_attempt: bool = False
    remove_all: bool = False
    no_overlap: bool = False
    only_queue: bool = False
    whole_objects: bool = False


@dataclass
class World:
    """Everything that outlives a process. source: the newest version of each partition's input. commits: of the table.
    bad: partitions whose runs fail. publishes_others: whether such a run publishes the others."""

    calls: Calls
    mutant: Mutant = field(default_factory=Mutant)
    bad: frozenset[Key] = frozenset()
    pace: Pace = field(default_factory=lambda: Pace(latency=timedelta(seconds=20), ceiling=50))
    resumes: bool = False
    publishes_others: bool = False
    duplicates: float = 0.0
    owner: str = "the model"
    now: float = START
    source: dict[Key, int] = field(default_factory=dict)
    commits: list[Commit] = field(default_factory=list)
    runs: list[ModelRun] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sqs = FakeSqs("q", "dead", clock=lambda: self.now, duplicates=self.duplicates)
        self.objects = MemoryObjects(self.calls)
        self.inbox = Inbox(MemoryObjects(self.calls))
        self.state = MemoryObjects(self.calls)
        self.plans = Plans(numbers().identifier, MemoryIO(self.objects), "receipts")  # type: ignore[arg-type]
        self.recorded = QueueRecords(self.plans)
        self.table: Table = numbers()
        self.keys = [f"2024-01-{day:02d}" for day in range(1, 11)]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    # Time

    def at(self, when: float, do: Callable[[], None]) -> None:
        """when: seconds since the start."""
        heapq.heappush(self._events, (START + when, next(self._order), do))

    def go(self, until: float = 24 * HOUR) -> None:
        """Until nothing is left to be done. Deaths end what they happen in."""
        self.at(0.0, self._tick)
        while self._events and self._events[0][0] <= START + until:
            self.now, _, do = heapq.heappop(self._events)
            try:
                do()
            except Killed:
                continue

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        self.at(self.now - START + seconds, do)

    # What comes from outside

    def arrives(self, *keys: Key) -> None:
        """A new version of some partitions' input, and the message that says so: the range of them, if they are many.
        The inbox has one object for it."""
        for key in keys:
            self.source[key] = self.source.get(key, 0) + 1
        asked = {"first": keys[0], "last": keys[-1]} if len(keys) > 1 else list(keys)
        body = json.dumps({"table": self.table.identifier, "partitions": asked})
        self.sqs.send_message(QueueUrl="x/q", MessageBody=body)

    def poison(self, body: str = "{") -> None:
        self.sqs.send_message(QueueUrl="x/q", MessageBody=body)

    def by_hand(self, keys: Sequence[Key], seconds: float) -> None:
        """Somebody materializes partitions."""
        self._start(keys, asked=False, seconds=seconds)

    def heal(self) -> None:
        """What was bad is mended."""
        self.bad = frozenset()

    # The sensor and the daemon

    def _tick(self) -> None:
        if not self.is_settled() or self._events:
            self.later(TICK, self._tick)
        told = self.tick().run()
        for request in told.decision.requests:
            self.calls(lambda: self._launch(request))  # noqa: B023

    def tick(self, source: Source | None = None) -> QueueTick:
        """source: in place of SQS."""
        routes = Routes([self.table], "/landing", lambda table: self.keys)
        source = source or SqsQueue(CountedSqs(self.sqs, self.calls), "x/q", "x/dead")
        clock = lambda: self.now  # noqa: E731
        kind = _DeletingFirst if self.mutant.delete_first else Intake
        intake = kind(source, routes, self.inbox, clock, clock)
        return QueueTick(intake, self.owner, MemoryStore(self.state), _Runs(self), self.now, 4)  # type: ignore[arg-type]

    def _launch(self, request: Request) -> None:
        if request.run_key not in {run.run_key for run in self.runs}:
            self._start(request.keys, asked=True, seconds=15.0, run_key=request.run_key)

    # Runs

    def _start(
        self, keys: Sequence[Key], *, asked: bool, seconds: float, run_key: str = "", of: ModelRun | None = None
    ) -> None:
        name = f"run{len(self.runs):04d}"
        run = ModelRun(name, of.token if of else name, tuple(keys), asked, seconds, run_key)
        if of:
            run.staged = of.staged  # receipts of the same token
        self.runs.append(run)
        steps = self._run(run)
        self.later(1.0, lambda: self._step(run, steps))

    def _step(self, run: ModelRun, steps: Generator[float]) -> None:
        try:
            self.later(next(steps), lambda: self._step(run, steps))
        except StopIteration:
            run.status = "SUCCESS"
        except RuntimeError:
            if self.resumes:
                self.later(REAPED_AFTER, lambda: self._reap(run))
            else:
                run.status = "FAILURE"
        except Killed:
            self.later(REAPED_AFTER, lambda: self._reap(run))
            raise

    def _reap(self, run: ModelRun) -> None:
        run.status = "FAILURE"
        if self.resumes:
            self._start(run.keys, asked=run.asked, seconds=run.seconds, run_key=run.run_key, of=run)

    def _run(self, run: ModelRun) -> Generator[float]:
        """The order of table_run.py."""
        mutant, takes_part = self.mutant, run.asked or not self.mutant.only_queue
        token = run.id if mutant.covers_by_attempt else run.token
        own = RunInbox(self.inbox, RunMessages(self.table.identifier, token, (), {}, None, 0), self.recorded.keys_of)
        own.clock = lambda: self.now

        def note() -> None:
            head = len(self.commits) or None
            plan = self.plans.find(token)
            if plan is None:
                resumes = run.token != run.id and not mutant.covers_by_attempt
                waiting = {} if resumes else waiting_for(self.inbox, self.table.identifier, run.keys)
                parts = {RunQueue.name: encode(Covered, waiting)}
                made = datetime.fromtimestamp(self.now, UTC)
                plan = run_plan(token, [Chunk(0, tuple(run.keys))], snapshot_id=head, extensions=parts, made_at=made)
                self.plans.write(plan)
            own.covers = covered(plan, self.table.identifier)

        if takes_part and not mutant.covers_late:
            note()
        for key in run.keys:  # the workers of an earlier attempt have read already
            if key not in run.staged:
                run.staged[key] = self.source.get(key, 0)
            yield run.seconds / len(run.keys)
        bad = self.bad & set(run.keys)
        for key in bad:
            del run.staged[key]
        if bad and not self.publishes_others:
            raise RuntimeError(f"bad: {bad}")
        if takes_part and mutant.covers_late:
            note()
        good = [key for key in run.keys if key not in bad]
        ready = [key for key in good if key not in self._published(run.token)]
        if takes_part and mutant.remove_first:
            self._remove(own, good)
        while ready:
            head = len(self.commits)
            if takes_part and not mutant.no_overlap:
                own.ask_again({c.token for c in self.commits[own.covers.snapshot_id or 0 :]})
            yield 0.5
            if self.calls(lambda: self._commit(run, ready, head)):  # noqa: B023
                break
        if takes_part and not mutant.remove_first:
            self._remove(own, good)
        if bad:
            raise RuntimeError(f"bad: {bad}")

    def _published(self, token: str) -> set[Key]:
        return {key for commit in self.commits if commit.token == token for key in commit.versions}

    def _commit(self, run: ModelRun, keys: Sequence[Key], head: int) -> bool:
        if len(self.commits) != head:
            return False
        self.commits.append(Commit(run.token, {key: run.staged[key] for key in keys}))
        return True

    def _remove(self, own: RunInbox, keys: Sequence[Key]) -> None:
        if self.mutant.remove_all:
            waiting = self.inbox.waiting({self.table.identifier})
            self.inbox.remove(name for name, item in waiting.items() if item.key in keys)
        elif self.mutant.whole_objects:
            names = own.covers.names()
            self.inbox.objects.remove(sorted({name.partition("#")[0] for key in keys for name in names[key]}))
        else:
            own.remove(keys)

    # What is true

    def rows(self) -> dict[Key, int]:
        """The version of each partition that readers see."""
        found: dict[Key, int] = {}
        for commit in self.commits:
            found |= commit.versions
        return found

    def lost(self) -> dict[Key, tuple[int, int]]:
        """Partitions whose newest version is not in the table: what readers see, what they should see."""
        rows = self.rows()
        return {key: (rows.get(key, 0), n) for key, n in self.source.items() if rows.get(key, 0) != n}

    def is_settled(self) -> bool:
        """Whether nothing waits anywhere, and nothing runs."""
        queued = self.sqs.queues["q"].messages
        return not queued and not self.inbox.objects.contents and not self.active()  # type: ignore[attr-defined]

    def active(self) -> list[ModelRun]:
        return [run for run in self.runs if run.status == "STARTED"]


class _DeletingFirst(Intake):
    """Rule 1 broken: what SQS has is deleted before the inbox has it."""

    def _items(self, read: Any) -> Any:
        self._delete([message for message, reading in read if not reading.problem])
        return super()._items(read)


@dataclass
class _Runs:
    """What the real Runs reads from Dagster."""

    world: World

    @property
    def tables(self) -> Sequence[Table]:
        return [self.world.table]

    def look(self) -> None: ...

    def keys_of(self, table: Table) -> Sequence[str]:
        return self.world.keys

    @property
    def ended(self) -> list[Any]:
        found = [run for run in self.world.runs if run.asked and run.status != "STARTED"]
        return [dg.DagsterRun(job_name="x", run_id=run.id) for run in reversed(found)]

    def lanes(self, names: Collection[str]) -> list[Lane]:
        active = self.world.active()
        asked: list[Collection[str] | None] = [run.keys for run in active if run.asked]
        others = {run.id: run.keys for run in active if not run.asked}
        last = self.ended[0].run_id if self.ended else ""
        return [Lane(self.world.table.identifier, self.world.pace, self.world.keys, asked, others, last_ended=last)]

    def outcomes(self, known: Collection[str], waiting: Collection[Waiting]) -> list[EndedRun]:
        names = {one.key: one.names for one in waiting}
        found = [r for r in self.world.runs if r.asked and r.status != "STARTED" and r.id not in known]
        return [
            EndedRun(
                run.id,
                self.world.table.identifier,
                dg.DagsterRunStatus(run.status),
                covers.names()
                if (covers := self.world.recorded.covers(run.token))
                else {k: names.get(k, frozenset()) for k in run.keys},
            )
            for run in found
        ]
