"""Takes messages from their source into the inbox: received, read, put there durably, and only then acknowledged."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TypeVar

from lakehouse_assets.environment.aws import batches
from lakehouse_assets.inbox.inbox import Inbox, Item, grouped
from lakehouse_assets.queue.messages import RoutedRequest, Routes, Wanted
from lakehouse_assets.queue.source import Message, Source, SourceError

THREADS = 8
MOST = 10_000
"""The most messages that a tick receives."""
FIRST = 1000
"""Messages that a tick receives at first. How long they take says how many more can be settled."""
SLICE = 100
"""Inbox objects that are written between two looks at the clock."""
MOST_ASKED = 2_000_000
"""The number of partitions asked for after which no more messages are settled together: counting so many takes seconds
and some hundred MB. A partition that several messages ask for counts for each; messages of the same text count once."""
DOING_SECONDS = 40.0
"""Seconds of a tick until nothing more is begun with the source: Dagster ends a tick after 60 s, a call may take long,
and deciding takes time as well."""
T = TypeVar("T")
R = TypeVar("R")


@dataclass
class TakenMessages:
    """The messages that a tick took, and what became of them."""

    received: int = 0
    """How many messages were received."""
    wanted: Counter[Wanted] = field(default_factory=Counter)
    """How many of the messages ask for each partition."""
    reasons: Counter[str] = field(default_factory=Counter)
    """How many messages were rejected for each reason."""
    deleted: int = 0
    """How many of the messages the source has deleted."""
    faults: dict[str, Exception] = field(default_factory=dict)
    """What went wrong, by what was being done: the first error of each. All else was done."""

    @property
    def left(self) -> int:
        """How many were received and not deleted; they come again, which costs a run of their partitions once more."""
        return self.received - self.deleted


@dataclass
class Intake:
    """The way of a tick's messages from their source into the inbox, or to those that a person must look at."""

    source: Source
    routes: Routes
    inbox: Inbox
    clock: Callable[[], float] = time.time
    """Returns seconds since 1970."""
    monotonic: Callable[[], float] = time.monotonic
    """Returns seconds, by which the time of a tick is limited."""
    taken: TakenMessages = field(default_factory=TakenMessages)
    """What was done by now, also where an error ends it."""
    end: float = field(init=False)
    """The time by ``monotonic`` after which nothing more is begun; it counts from when the intake is made."""

    def __post_init__(self) -> None:
        self.end = self.monotonic() + DOING_SECONDS

    def take(self, most: int = MOST) -> None:
        """Takes messages until the source seems empty, about ``most`` were received, or the time is up.

        No message is lost, wherever this ends: the inbox has it, or it was rejected, before the source deletes it. What
        the source refuses is noted in ``taken``; the rest is done, and the messages in question come again. So do
        those for which there was no time. A source may count what it hands out against a message, so no more are
        received than can be settled in the time left. Raises what the storage raises; no message that it has not kept
        was deleted then.
        """
        share = min(FIRST, most)
        while share > 0 and (began := self.monotonic()) < self.end:
            messages = self._receive(share, (began + self.end) / 2)
            self._settle(messages)
            if len(messages) < share or self.taken.left:  # there are no more, or there is no time for more
                break
            seconds = self.monotonic() - began
            share = most - self.taken.received
            if seconds > 0:
                share = min(share, int(len(messages) / seconds * (self.end - began - seconds) / 2))

    def reject(self, letters: Sequence[tuple[str, str]]) -> list[bool]:
        """Rejects messages, each a body and a reason, while there is time, and tells for each whether that was done."""

        def send(letter: tuple[str, str]) -> bool:
            self.source.reject(*letter)
            return True

        doing = "writing to the dead-letter queue"
        sent = in_threads(lambda letter: self._in_time() and self._try(doing, lambda: send(letter), False), letters)
        self.taken.reasons.update(reason for (_, reason), is_sent in zip(letters, sent, strict=True) if is_sent)
        return sent

    def _in_time(self) -> bool:
        return self.monotonic() <= self.end

    def _try(self, doing: str, call: Callable[[], R], otherwise: R) -> R:
        """Calls the source. Where that fails, it notes the error and returns ``otherwise``."""
        try:
            return call()
        except SourceError as error:
            self.taken.faults.setdefault(doing, error)
            return otherwise

    def _receive(self, most: int, end: float) -> list[Message]:
        """Receives about ``most`` messages, in threads of which each ends at its first empty answer."""
        found: dict[str, Message] = {}
        batch = self.source.batch

        def until_empty(share: int) -> None:
            received = 0
            while received < share and self.monotonic() < end:
                some = min(batch, share - received)
                nothing: Sequence[Message] = ()
                messages = self._try("receiving", lambda: self.source.receive(some), nothing)  # noqa: B023
                # Of one that comes twice, the last receipt deletes it.
                found.update({message.id: message for message in messages})
                received += len(messages)
                if not messages:
                    return

        until_empty(min(batch, most))
        if found and most > batch:
            in_threads(until_empty, [-(-(most - batch) // THREADS)] * THREADS)
        self.taken.received += len(found)
        return list(found.values())

    def _settle(self, messages: Sequence[Message]) -> None:
        """Settles the messages for which there is time: first what they ask for, then what nobody can act on.

        A message is deleted as soon as the inbox has all that it asks for.
        """
        left = self._read(messages, (self.monotonic() + self.end) / 2)
        objects = grouped(self._items(left))  # those that the first messages need come first
        kept: set[Wanted] = set()
        complete: set[str] = set()
        bad: list[tuple[Message, str]] = []

        def has_all(one: tuple[Message, RoutedRequest]) -> bool:
            message, reading = one
            if message.body not in complete and kept.issuperset(reading.wanted):
                complete.add(message.body)
            return message.body in complete

        for some in batches(objects, SLICE) or [[]]:
            if kept and not self._in_time():
                break
            self.inbox.put(item for of_object in some for item in of_object)
            kept.update((item.table, item.key) for of_object in some for item in of_object)
            ready = list(takewhile(has_all, left))
            left = left[len(ready) :]
            self._delete([message for message, reading in ready if not reading.problem])
            bad += [(message, reading.problem) for message, reading in ready if reading.problem]
        for batch in batches(bad, THREADS * self.source.batch):  # what is rejected is soon deleted
            sent = self.reject([(message.body, reason) for message, reason in batch])
            self._delete([message for (message, _), is_sent in zip(batch, sent, strict=True) if is_sent])

    def _read(self, messages: Sequence[Message], end: float) -> list[tuple[Message, RoutedRequest]]:
        """Reads messages, as many as time and memory suffice for: one message may ask for very many partitions.

        Messages of the same text are read once, and share one reading.
        """
        readings: dict[str, RoutedRequest] = {}
        found: list[tuple[Message, RoutedRequest]] = []
        asked = 0
        for message in messages:
            if (body := message.body) not in readings:
                if found and (asked > MOST_ASKED or self.monotonic() > end):
                    break
                readings[body] = self.routes.read(body)
                asked += len(readings[body].wanted)
            found.append((message, readings[body]))
        return found

    def _items(self, read: Iterable[tuple[Message, RoutedRequest]]) -> list[Item]:
        """Returns one item for each partition, however many messages ask for it."""
        wanted: dict[str, Sequence[Wanted]] = {}
        times: dict[str, list[int]] = defaultdict(list)
        for message, reading in read:
            wanted[message.body] = reading.wanted
            times[message.body].append(message.sent_ms)
        messages: Counter[Wanted] = Counter()
        for body in wanted:  # whole requests at once, which takes a fraction of the time: they may be very large
            messages.update(dict.fromkeys(wanted[body], len(times[body])))
        sent = dict.fromkeys(messages, 0)
        for body in sorted(wanted, key=lambda body: min(times[body]), reverse=True):  # the oldest has the last word
            sent.update(dict.fromkeys(wanted[body], min(times[body])))
        self.taken.wanted.update(messages)
        now_ms = round(self.clock() * 1000)
        return [Item(*each, messages[each], sent_ms, now_ms) for each, sent_ms in sent.items()]

    def _delete(self, messages: Sequence[Message]) -> None:
        def delete(batch: Sequence[Message]) -> int:
            return self._try("deleting", lambda: self.source.ack(batch), 0) if self._in_time() else 0

        self.taken.deleted += sum(in_threads(delete, batches(messages, self.source.batch)))


def in_threads(do: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Returns the results in order, computed in THREADS threads. Raises what the first that failed raised."""
    with ThreadPoolExecutor(THREADS, thread_name_prefix="queue") as pool:
        return list(pool.map(do, items))
