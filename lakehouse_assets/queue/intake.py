"""Takes messages from SQS into the inbox: received, read, put there durably, and only then deleted from the queue.

Which partitions are run is decided in decide.py, from the inbox alone.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, TypeVar

from lakehouse_assets.inbox.inbox import Inbox, Item, grouped
from lakehouse_assets.queue.route import LONGEST_REASON, RoutedRequest, Routes, Wanted

BATCH = 10
"""The most messages that one call to SQS takes or gives."""
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
"""Seconds of a tick for all that is done with SQS: Dagster ends a tick after 60 s, and deciding takes time as well."""
VISIBILITY_SECONDS = 120
"""The visibility timeout of what a tick received, longer than any tick: until then nobody else receives it."""
LARGEST = 1024 * 1024
"""The most bytes of a message with its attributes
(https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/quotas-messages.html)."""
REASON = "reason"
UNSENDABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""The characters that SQS refuses in a message and its attributes
(https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessage.html)."""
Message = Mapping[str, Any]
"""A message as boto3 returns it."""
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Depth:
    """The approximate number of messages that the queue has."""

    visible: int
    """Messages that can be received now."""
    in_flight: int
    """Messages that were received and not deleted."""
    delayed: int
    """Messages that can be received later."""


@dataclass
class Taken:
    """The messages that a tick took, and what became of them."""

    received: int = 0
    """How many messages were received."""
    wanted: Counter[Wanted] = field(default_factory=Counter)
    """How many of the messages ask for each partition."""
    reasons: Counter[str] = field(default_factory=Counter)
    """How many messages went to the dead-letter queue for each reason."""
    deleted: int = 0
    """How many of the messages SQS deleted."""
    left: int = 0
    """How many were received and not deleted; they come again, which costs a run of their partitions once more."""
    calls: int = 0
    """How many calls of SQS took, deleted and sent the messages."""
    faults: dict[str, Exception] = field(default_factory=dict)
    """What went wrong, by what was being done: the first error of each. All else was done."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def count(self, deleted: int = 0, reason: str = "") -> None:
        """Counts messages that were deleted, or one that went to the dead-letter queue; any thread may call it."""
        with self._lock:
            self.deleted += deleted
            if reason:
                self.reasons[reason] += 1

    @contextmanager
    def calling(self, doing: str) -> Iterator[None]:
        """Counts a call of SQS. An error of boto3's that it raises goes into ``faults`` and no further."""
        from botocore.exceptions import BotoCoreError, ClientError

        with self._lock:
            self.calls += 1
        try:
            yield
        except (BotoCoreError, ClientError) as error:
            self.faults.setdefault(doing, error)


@dataclass(frozen=True)
class Intake:
    """The way of messages from a queue into the inbox, or into the dead-letter queue."""

    sqs: Any
    """A boto3 client."""
    queue: str
    """The queue's URL."""
    dead_letters: str
    """The dead-letter queue's URL."""
    routes: Routes
    inbox: Inbox
    clock: Callable[[], float] = time.time
    """Returns seconds since 1970."""
    monotonic: Callable[[], float] = time.monotonic
    """Returns seconds, by which the time of a tick is limited."""

    def depth(self) -> Depth:
        """Returns how many messages the queue has. Raises what boto3 raises."""
        names = ("", "NotVisible", "Delayed")
        wanted = [f"ApproximateNumberOfMessages{name}" for name in names]
        found = self.sqs.get_queue_attributes(QueueUrl=self.queue, AttributeNames=wanted)["Attributes"]
        return Depth(*(int(found[name]) for name in wanted))

    def take(self, most: int = MOST, spent: float = 0.0) -> Taken:
        """Takes messages until the queue seems empty, about ``most`` were received, or the time is up.

        No message is lost, wherever this ends: the inbox or the dead-letter queue has it before SQS deletes it. What
        SQS refuses is in the result's ``faults``; the rest is done, and the messages in question come again. So do
        those for which there was no time. Each receive counts against a message, so no more are received than can be
        settled in the time left.

        spent: seconds of the tick that are over. Raises what the storage raises; no message that it has not kept was
        deleted then.
        """
        taken, end = Taken(), self.monotonic() + DOING_SECONDS - spent
        share = min(FIRST, most)
        while share > 0 and (began := self.monotonic()) < end:
            messages = self._receive(share, taken, (began + end) / 2)
            self._settle(messages, taken, end)
            taken.left = taken.received - taken.deleted
            if len(messages) < share or taken.left:  # there are no more, or there is no time for more
                break
            seconds = self.monotonic() - began
            share = most - taken.received
            if seconds > 0:
                share = min(share, int(len(messages) / seconds * (end - began - seconds) / 2))
        return taken

    def _receive(self, most: int, taken: Taken, end: float) -> list[Message]:
        """Receives about ``most`` messages, in threads of which each ends at its first empty answer.

        One empty answer is enough: a call that waits asks all of SQS's servers.
        """
        found: dict[str, Message] = {}

        def until_empty(share: int) -> None:
            received = 0
            while received < share and self.monotonic() < end:
                messages: Sequence[Message] = ()
                with taken.calling("receiving"):
                    messages = self._receive_some(min(BATCH, share - received))
                # Of one that comes twice, the last handle deletes it.
                found.update({message["MessageId"]: message for message in messages})
                received += len(messages)
                if not messages:
                    return

        until_empty(min(BATCH, most))
        if found and most > BATCH:
            in_threads(until_empty, [-(-(most - BATCH) // THREADS)] * THREADS)
        taken.received += len(found)
        return list(found.values())

    def _receive_some(self, most: int) -> Sequence[Message]:
        answer = self.sqs.receive_message(
            QueueUrl=self.queue,
            MaxNumberOfMessages=most,
            VisibilityTimeout=VISIBILITY_SECONDS,
            WaitTimeSeconds=1,
            MessageSystemAttributeNames=["SentTimestamp"],
        )
        return answer.get("Messages", ())  # type: ignore[no-any-return]

    def _settle(self, messages: Sequence[Message], taken: Taken, end: float) -> None:
        """Settles the messages for which there is time: first what they ask for, then what nobody can act on.

        A message is deleted as soon as the inbox has all that it asks for.
        """
        left = self._read(messages, (self.monotonic() + end) / 2)
        objects = grouped(self._items(left, taken))  # those that the first messages need come first
        kept: set[Wanted] = set()
        complete: set[str] = set()
        bad: list[tuple[Message, str]] = []

        def has_all(one: tuple[Message, RoutedRequest]) -> bool:
            message, reading = one
            if message["Body"] not in complete and kept.issuperset(reading.wanted):
                complete.add(message["Body"])
            return message["Body"] in complete

        for some in batches(objects, SLICE) or [()]:
            if kept and self.monotonic() > end:
                break
            self.inbox.put(item for of_object in some for item in of_object)
            kept.update((item.table, item.key) for of_object in some for item in of_object)
            ready = list(takewhile(has_all, left))
            left = left[len(ready) :]
            self._delete([message for message, reading in ready if not reading.problem], taken, end)
            bad += [(message, reading.problem) for message, reading in ready if reading.problem]
        self._set_aside(bad, taken, end)

    def _read(self, messages: Sequence[Message], end: float) -> list[tuple[Message, RoutedRequest]]:
        """Reads messages, as many as time and memory suffice for: one message may ask for very many partitions.

        Messages of the same text are read once, and share one reading.
        """
        readings: dict[str, RoutedRequest] = {}
        found: list[tuple[Message, RoutedRequest]] = []
        asked = 0
        for message in messages:
            if (body := message["Body"]) not in readings:
                if found and (asked > MOST_ASKED or self.monotonic() > end):
                    break
                readings[body] = self.routes.read(body)
                asked += len(readings[body].wanted)
            found.append((message, readings[body]))
        return found

    def _items(self, read: Iterable[tuple[Message, RoutedRequest]], taken: Taken) -> list[Item]:
        """Returns one item for each partition, however many messages ask for it."""
        wanted: dict[str, Sequence[Wanted]] = {}
        times: dict[str, list[int]] = defaultdict(list)
        for message, reading in read:
            wanted[message["Body"]] = reading.wanted
            times[message["Body"]].append(int(message["Attributes"]["SentTimestamp"]))
        messages: Counter[Wanted] = Counter()
        for body in wanted:  # whole requests at once, which takes a fraction of the time: they may be very large
            messages.update(dict.fromkeys(wanted[body], len(times[body])))
        sent = dict.fromkeys(messages, 0)
        for body in sorted(wanted, key=lambda body: min(times[body]), reverse=True):  # the oldest has the last word
            sent.update(dict.fromkeys(wanted[body], min(times[body])))
        taken.wanted.update(messages)
        now_ms = round(self.clock() * 1000)
        return [Item(*each, messages[each], sent_ms, now_ms) for each, sent_ms in sent.items()]

    def _set_aside(self, bad: Sequence[tuple[Message, str]], taken: Taken, end: float) -> None:
        """Moves messages to the dead-letter queue, each with its reason; what is left when time is up stays."""

        def set_aside(batch: Sequence[tuple[Message, str]]) -> None:
            kept = [message for message, reason in batch if self._is_kept(message, reason, taken, end)]
            self._delete(kept, taken, end)

        in_threads(set_aside, batches(bad))

    def _is_kept(self, message: Message, reason: str, taken: Taken, end: float) -> bool:
        """Sends a message to the dead-letter queue if there is time, and tells whether it is there."""
        return self.monotonic() <= end and self.bury(message["Body"], reason, taken)

    def bury(self, body: str, reason: str, taken: Taken) -> bool:
        """Sends a message to the dead-letter queue, and tells whether it is there.

        Each message is sent by itself: ten long ones are too much for a call.
        """
        with taken.calling("writing to the dead-letter queue"):
            attributes = reason_attribute(reason, len(body.encode()))
            self.sqs.send_message(QueueUrl=self.dead_letters, MessageBody=body, MessageAttributes=attributes)
            taken.count(reason=reason)
            return True
        return False

    def _delete(self, messages: Sequence[Message], taken: Taken, end: float) -> None:
        def delete(batch: Sequence[Message]) -> None:
            if self.monotonic() > end:
                return
            entries = [{"Id": str(n), "ReceiptHandle": m["ReceiptHandle"]} for n, m in enumerate(batch)]
            with taken.calling("deleting"):
                answer = self.sqs.delete_message_batch(QueueUrl=self.queue, Entries=entries)
                taken.count(deleted=len(batch) - len(answer.get("Failed", ())))

        in_threads(delete, batches(messages))


def batches(items: Sequence[T], size: int = BATCH) -> list[Sequence[T]]:
    """Splits items into batches of ``size``, in order; by default as many as one call to SQS takes."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def in_threads(do: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Returns the results in order, computed in THREADS threads. Raises what the first that failed raised."""
    with ThreadPoolExecutor(THREADS, thread_name_prefix="queue") as pool:
        return list(pool.map(do, items))


def reason_attribute(reason: str, body_bytes: int) -> dict[str, Any]:
    """Returns the attribute of a dead letter that says why it is one; none where the body leaves no room for it."""
    around = len(REASON) + len("String")
    room = min(LONGEST_REASON, LARGEST - body_bytes - around)
    text = UNSENDABLE.sub("\ufffd", reason).encode()[: max(0, room)].decode(errors="ignore")
    return {REASON: {"DataType": "String", "StringValue": text}} if text else {}
