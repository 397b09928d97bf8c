"""Takes messages into the inbox; acknowledges them once they are durable there.

To settle a message is to put what it asks for into the inbox, or to reject it to the dead-letter queue, and to delete
it afterwards.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TypeVar

from lakehouse_assets.environment.aws import batches
from lakehouse_assets.extensions.queue.inbox import Inbox, Item, grouped
from lakehouse_assets.extensions.queue.messages import RoutedRequest, Routes, Wanted
from lakehouse_assets.extensions.queue.source import Message, Source, SourceError

THREADS = 8
MOST = 10_000
"""About the most messages that a tick receives."""
FIRST = 1000
"""Messages received first, to time how many can be settled."""
SLICE = 100
"""Objects written between looks at the clock."""
MOST_ASKED = 2_000_000
"""The most partitions settled together: counting so many takes seconds and some hundred MB."""
DOING_SECONDS = 40.0
"""No call begins later in a tick: Dagster ends it after 60 s, and the last call and deciding take time."""
T = TypeVar("T")
R = TypeVar("R")


@dataclass
class TakenMessages:
    """What became of a tick's messages."""

    received: int = 0
    wanted: Counter[Wanted] = field(default_factory=Counter)
    """Messages by partition."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Dead letters by reason."""
    deleted: int = 0
    faults: dict[str, Exception] = field(default_factory=dict)
    """The first error of each action; the rest was done."""

    @property
    def left(self) -> int:
        """Messages that come again."""
        return self.received - self.deleted


@dataclass
class Intake:
    """Moves messages from their source into the inbox, or rejects them."""

    source: Source
    routes: Routes
    inbox: Inbox
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    taken: TakenMessages = field(default_factory=TakenMessages)
    end: float = field(init=False)
    """By ``monotonic``: nothing begins later."""

    def __post_init__(self) -> None:
        self.end = self.monotonic() + DOING_SECONDS

    def take(self, most: int = MOST) -> None:
        """Takes messages until the source seems empty, about ``most`` were received, or time is up.

        Deletes a message only after the inbox has it or it was rejected; all others come again. Receives no more than
        it can settle in time, because a source may make a dead letter of a message that comes too often. Notes the
        source's errors in ``taken``; raises the storage's.
        """
        share = min(FIRST, most)
        while share > 0 and (began := self.monotonic()) < self.end:
            # The other half of the time is for settling them.
            messages = self._receive(share, (began + self.end) / 2)
            self._settle(messages)
            # There are no more messages, or there is no time for them.
            if len(messages) < share or self.taken.left:
                break
            seconds = self.monotonic() - began
            share = most - self.taken.received
            # No more than half of the time left suffices for, at this pace.
            if seconds > 0:
                share = min(share, int(len(messages) / seconds * (self.end - began - seconds) / 2))

    def reject(self, letters: Sequence[tuple[str, str]]) -> list[bool]:
        """Rejects (body, reason) while time remains; returns whether each was rejected."""

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
        """Calls the source. Notes an error as a fault of the action ``doing``, and returns ``otherwise``."""
        try:
            return call()
        except SourceError as error:
            self.taken.faults.setdefault(doing, error)
            return otherwise

    def _receive(self, most: int, end: float) -> list[Message]:
        """Returns about ``most`` messages, or fewer if the source seems empty or ``end`` has come."""
        found: dict[str, Message] = {}
        batch = self.source.batch

        def until_empty(share: int) -> None:
            received = 0
            while received < share and self.monotonic() < end:
                some = min(batch, share - received)
                nothing: Sequence[Message] = ()
                messages = self._try("receiving", lambda: self.source.receive(some), nothing)  # noqa: B023
                # Only the last receipt of a repeated message deletes it.
                found.update({message.id: message for message in messages})
                received += len(messages)
                if not messages:
                    return

        # First one batch: an empty source needs no threads.
        until_empty(min(batch, most))
        if found and most > batch:
            # The rest divided by THREADS, rounded up.
            in_threads(until_empty, [-(-(most - batch) // THREADS)] * THREADS)
        self.taken.received += len(found)
        return list(found.values())

    def _settle(self, messages: Sequence[Message]) -> None:
        """Deletes a message once the inbox has all that it asks for; rejects (partly) bad ones last."""
        unsettled = self._read(messages, (self.monotonic() + self.end) / 2)
        # Objects are in the messages' order: those that the first messages need come first.
        objects = grouped(self._items(unsettled))
        kept: set[Wanted] = set()
        # Bodies whose partitions are all kept: many messages may have the same body.
        complete: set[str] = set()
        bad: list[tuple[Message, str]] = []

        def has_all(one: tuple[Message, RoutedRequest]) -> bool:
            message, reading = one
            if message.body not in complete and kept.issuperset(reading.wanted):
                complete.add(message.body)
            return message.body in complete

        # Messages are deleted in order, up to the first whose partitions are not all in the inbox.
        # [[]]: bad messages need no object, and are settled all the same.
        for some in batches(objects, SLICE) or [[]]:
            if kept and not self._in_time():
                break
            self.inbox.put(item for of_object in some for item in of_object)
            kept.update((item.table, item.key) for of_object in some for item in of_object)
            ready = list(takewhile(has_all, unsettled))
            unsettled = unsettled[len(ready) :]
            self._delete([message for message, reading in ready if not reading.problem])
            bad += [(message, reading.problem) for message, reading in ready if reading.problem]
        # In batches, so that a message is deleted soon after it was rejected.
        for batch in batches(bad, THREADS * self.source.batch):
            sent = self.reject([(message.body, reason) for message, reason in batch])
            self._delete([message for (message, _), is_sent in zip(batch, sent, strict=True) if is_sent])

    def _read(self, messages: Sequence[Message], end: float) -> list[tuple[Message, RoutedRequest]]:
        """Reads each text once; stops for time or memory, as one message may ask for many partitions."""
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
        """Returns one item for each partition that the messages ask for."""
        wanted: dict[str, Sequence[Wanted]] = {}
        times: dict[str, list[int]] = defaultdict(list)
        for message, reading in read:
            wanted[message.body] = reading.wanted
            times[message.body].append(message.sent_ms)
        messages: Counter[Wanted] = Counter()
        # Adds whole requests at once: much faster if they are very large.
        for body in wanted:
            messages.update(dict.fromkeys(wanted[body], len(times[body])))
        sent = dict.fromkeys(messages, 0)
        # The last update wins, so the oldest time comes last.
        for body in sorted(wanted, key=lambda body: min(times[body]), reverse=True):
            sent.update(dict.fromkeys(wanted[body], min(times[body])))
        self.taken.wanted.update(messages)
        now_ms = round(self.clock() * 1000)
        return [Item(*each, messages[each], sent_ms, now_ms) for each, sent_ms in sent.items()]

    def _delete(self, messages: Sequence[Message]) -> None:
        def delete(batch: Sequence[Message]) -> int:
            return self._try("deleting", lambda: self.source.ack(batch), 0) if self._in_time() else 0

        self.taken.deleted += sum(in_threads(delete, batches(messages, self.source.batch)))


def in_threads(do: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Does it for all items in THREADS threads; returns the results in order. Raises the first error in that order."""
    with ThreadPoolExecutor(THREADS, thread_name_prefix="queue") as pool:
        return list(pool.map(do, items))
