"""Takes messages from SQS into the inbox: received, read, put there durably, and only then deleted from the queue.
Which partitions are run is decided in decide.py, from the inbox alone."""

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
from lakehouse_assets.queue.route import LONGEST_REASON, Reading, Routes, Wanted

BATCH = 10
"""Messages that one call to SQS takes or gives."""
THREADS = 8
MOST = 10_000
"""Messages of one tick."""
FIRST = 1000
"""Messages that a tick receives at first. How long they take says how many more can be settled."""
SLICE = 100
"""Objects that are put between two looks at the clock."""
MOST_ASKED = 2_000_000
"""Partitions that messages settled together may ask for, one that several ask for counted for each: to count so many
takes seconds and some hundred MB. Messages of the same text count once."""
DOING_SECONDS = 40.0
"""Of a tick, which Dagster ends after 60 s, for all that is done with SQS: there must be time left to decide."""
RECEIVING_SECONDS = DOING_SECONDS / 2
"""Of these, for receiving at most: what was received must still be put into the inbox."""
VISIBILITY_SECONDS = 120
"""Longer than any tick: until then nobody else is handed what this one received."""
LARGEST = 1024 * 1024
"""Bytes of a message with its attributes
(https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/quotas-messages.html)."""
REASON = "reason"
UNSENDABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What SQS refuses in a message and its attributes
(https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessage.html)."""
Message = Mapping[str, Any]
"""As boto3 has it."""
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Depth:
    """How many messages the queue has, about: to be received, received and not deleted, to be received later."""

    visible: int
    in_flight: int
    delayed: int


@dataclass
class Taken:
    """What a tick did.

    received: messages. wanted: by partition, how many of them ask for it. reasons: why messages went to the dead-letter
    queue, how many for each. deleted: messages. left: that SQS did not delete; they come again, which costs a run of
    their partitions once more. calls: of SQS. faults: what went wrong, by what was being done; the rest was done.
    """

    received: int = 0
    wanted: Counter[Wanted] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    deleted: int = 0
    left: int = 0
    calls: int = 0
    faults: dict[str, Exception] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def count(self, deleted: int = 0, reason: str = "") -> None:
        """From any thread."""
        with self._lock:
            self.deleted += deleted
            if reason:
                self.reasons[reason] += 1

    @contextmanager
    def calling(self, doing: str) -> Iterator[None]:
        """Count a call of SQS, and keep what it raises of boto3's errors."""
        from botocore.exceptions import BotoCoreError, ClientError

        with self._lock:
            self.calls += 1
        try:
            yield
        except (BotoCoreError, ClientError) as error:
            self.faults.setdefault(doing, error)


@dataclass(frozen=True)
class Intake:
    """sqs: a boto3 client. queue, dead_letters: URLs. clock: seconds since 1970; monotonic: for the time box."""

    sqs: Any
    queue: str
    dead_letters: str
    routes: Routes
    inbox: Inbox
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic

    def depth(self) -> Depth:
        """Raises what boto3 raises."""
        names = ("", "NotVisible", "Delayed")
        wanted = [f"ApproximateNumberOfMessages{name}" for name in names]
        found = self.sqs.get_queue_attributes(QueueUrl=self.queue, AttributeNames=wanted)["Attributes"]
        return Depth(*(int(found[name]) for name in wanted))

    def take(self, most: int = MOST, spent: float = 0.0) -> Taken:
        """Receive until the queue seems empty, ``most`` were received, or the time is up; keep it all.

        spent: seconds of the tick that are over. The order loses nothing, wherever it ends: the inbox or the
        dead-letter queue has a message before SQS deletes it. What SQS refuses is in the answer's ``faults``, and what
        else could be done is done: those messages come again. So do those that time did not suffice for; each receive
        counts against a message, so no more is received than can be settled in the time left. Raises what the storage
        raises, before anything of what it refused is deleted.
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
        """One empty answer is enough: a call that waits asks all of SQS's servers."""
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
        """Keep what time suffices for: first what is asked for, then what nobody can act on. A message goes as soon as
        the inbox has all that it asks for."""
        left = self._read(messages, (self.monotonic() + end) / 2)
        objects = grouped(self._items(left, taken))  # those that the first messages need come first
        kept: set[Wanted] = set()
        complete: set[str] = set()
        bad: list[tuple[Message, str]] = []

        def has_all(one: tuple[Message, Reading]) -> bool:
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

    def _read(self, messages: Sequence[Message], end: float) -> list[tuple[Message, Reading]]:
        """As far as time and memory suffice: one message may ask for very many partitions. The same text is read once,
        and has one answer for all its messages."""
        readings: dict[str, Reading] = {}
        found: list[tuple[Message, Reading]] = []
        asked = 0
        for message in messages:
            if (body := message["Body"]) not in readings:
                if found and (asked > MOST_ASKED or self.monotonic() > end):
                    break
                readings[body] = self.routes.read(body)
                asked += len(readings[body].wanted)
            found.append((message, readings[body]))
        return found

    def _items(self, read: Iterable[tuple[Message, Reading]], taken: Taken) -> list[Item]:
        """One for each partition, however many messages ask for it."""
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
        """Into the dead-letter queue, each with the reason; what is not there when time is up stays where it is."""

        def set_aside(batch: Sequence[tuple[Message, str]]) -> None:
            kept = [message for message, reason in batch if self._is_kept(message, reason, taken, end)]
            self._delete(kept, taken, end)

        in_threads(set_aside, batches(bad))

    def _is_kept(self, message: Message, reason: str, taken: Taken, end: float) -> bool:
        """Whether the dead-letter queue has it now."""
        return self.monotonic() <= end and self.bury(message["Body"], reason, taken)

    def bury(self, body: str, reason: str, taken: Taken) -> bool:
        """Send a message to the dead-letter queue; whether it is there. Each is sent by itself: ten long ones are too
        much for a call."""
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
    """In order, so many in each: as many as one call takes."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def in_threads(do: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """The results in order, THREADS at a time. Raises what the first that failed raised."""
    with ThreadPoolExecutor(THREADS, thread_name_prefix="queue") as pool:
        return list(pool.map(do, items))


def reason_attribute(reason: str, body_bytes: int) -> dict[str, Any]:
    """The attribute of a dead letter that says why it is one; none where the body leaves no room for it."""
    around = len(REASON) + len("String")
    room = min(LONGEST_REASON, LARGEST - body_bytes - around)
    text = UNSENDABLE.sub("\ufffd", reason).encode()[: max(0, room)].decode(errors="ignore")
    return {REASON: {"DataType": "String", "StringValue": text}} if text else {}
