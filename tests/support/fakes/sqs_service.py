"""Amazon SQS's standard queues as plain methods, by AWS's rules for receipt handles, batches and sizes.
How boto3's requests reach them is wire.py's.

https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-queue-message-identifiers.html,
https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/quotas-messages.html
"""

from __future__ import annotations

import hashlib
import json
import random
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from uuid import uuid4

from tests.support.fakes.wire import Fault

LARGEST = 1024 * 1024
"""Bytes of a message with its attributes, and of a batch."""
LARGEST_BATCH = 10
REGION, ACCOUNT = "eu-central-1", "123456789012"
P = ParamSpec("P")
R = TypeVar("R")


@dataclass
class Message:
    """handle: of the last receive; earlier ones delete nothing. visible: not before, seconds by the queue's clock."""

    body: str
    attributes: Mapping[str, Any]
    sent: float
    visible: float
    id: str = field(default_factory=lambda: str(uuid4()))
    handle: str = ""
    receives: int = 0
    first_received: float = 0.0


@dataclass
class Queue:
    """messages: by id. deleted: ids in the order in which they went. visibility: seconds. dead_letters: the name of the
    queue to which a message goes that was received more than most_receives times."""

    visibility: float = 30.0
    dead_letters: str = ""
    most_receives: int = 0
    messages: dict[str, Message] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)


def _alone(
    operation: Callable[Concatenate[FakeSqs, P], R],
) -> Callable[Concatenate[FakeSqs, P], R]:
    """The operation, one caller at a time: SQS hands a message to one of those who ask at once."""

    @wraps(operation)
    def alone(self: FakeSqs, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.lock:
            return operation(self, *args, **kwargs)

    return alone


class FakeSqs:
    """clock: seconds since 1970. seed: of the disorder in which messages come. duplicates: the share of receives after
    which a message is handed out once more. unlucky: whether a message can't be deleted now, for partial failures."""

    def __init__(
        self,
        *names: str,
        clock: Callable[[], float] = time.time,
        seed: int = 0,
        duplicates: float = 0.0,
        unlucky: Callable[[], bool] = lambda: False,
    ) -> None:
        self.queues = {name: Queue() for name in names}
        self.clock, self.random = clock, random.Random(seed)
        self.duplicates, self.unlucky = duplicates, unlucky
        self.base = ""
        self.lock = threading.Lock()

    def url(self, name: str) -> str:
        """The queue's URL, once ``base`` is the endpoint's."""
        return f"{self.base}/{ACCOUNT}/{name}"

    def arn(self, name: str) -> str:
        return f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"

    # What boto3 calls.

    @_alone
    def get_queue_attributes(self, QueueUrl: str, AttributeNames: Collection[str] = ()) -> dict[str, Any]:
        queue, now = self._queue(QueueUrl), self.clock()
        messages = list(queue.messages.values())
        values = {
            "ApproximateNumberOfMessages": sum(m.visible <= now for m in messages),
            "ApproximateNumberOfMessagesNotVisible": sum(m.visible > now and m.receives > 0 for m in messages),
            "ApproximateNumberOfMessagesDelayed": sum(m.visible > now and not m.receives for m in messages),
            "VisibilityTimeout": int(queue.visibility),
            "QueueArn": self.arn(self._name(QueueUrl)),
        }
        if queue.dead_letters:
            values["RedrivePolicy"] = json.dumps(
                {"deadLetterTargetArn": self.arn(queue.dead_letters), "maxReceiveCount": queue.most_receives}
            )
        wanted = values.keys() if "All" in AttributeNames else AttributeNames
        return {"Attributes": {name: str(values[name]) for name in wanted if name in values}}

    @_alone
    def list_queue_tags(self, QueueUrl: str) -> dict[str, Any]:
        tags = self._queue(QueueUrl).tags
        return {"Tags": dict(tags)} if tags else {}

    @_alone
    def tag_queue(self, QueueUrl: str, Tags: Mapping[str, str]) -> None:
        self._queue(QueueUrl).tags.update(Tags)

    @_alone
    def send_message(
        self,
        QueueUrl: str,
        MessageBody: str,
        MessageAttributes: Mapping[str, Any] | None = None,
        DelaySeconds: int = 0,
    ) -> dict[str, Any]:
        if _size(MessageBody, MessageAttributes) > LARGEST:
            raise Fault("InvalidMessageContents", f"the message is longer than {LARGEST} bytes")
        return self._send(QueueUrl, MessageBody, MessageAttributes or {}, DelaySeconds)

    @_alone
    def send_message_batch(self, QueueUrl: str, Entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        self._queue(QueueUrl)
        _check_batch(Entries)
        if sum(_size(entry["MessageBody"], entry.get("MessageAttributes")) for entry in Entries) > LARGEST:
            raise Fault("BatchRequestTooLong")
        sent = [
            {"Id": e["Id"]}
            | self._send(QueueUrl, e["MessageBody"], e.get("MessageAttributes", {}), e.get("DelaySeconds", 0))
            for e in Entries
        ]
        return {"Successful": sent, "Failed": []}

    @_alone
    def receive_message(
        self,
        QueueUrl: str,
        MaxNumberOfMessages: int = 1,
        VisibilityTimeout: int | None = None,
        WaitTimeSeconds: int = 0,
        AttributeNames: Collection[str] = (),
        MessageSystemAttributeNames: Collection[str] = (),
        MessageAttributeNames: Collection[str] = (),
    ) -> dict[str, Any]:
        if not 1 <= MaxNumberOfMessages <= LARGEST_BATCH:
            raise Fault("ValidationException", "MaxNumberOfMessages is not from 1 to 10")
        queue, now = self._queue(QueueUrl), self.clock()
        self._move_dead(queue, now)
        ready = [message for message in queue.messages.values() if message.visible <= now]
        taken = self.random.sample(ready, min(len(ready), MaxNumberOfMessages))
        for message in taken:
            self._hand_out(message, now, queue.visibility if VisibilityTimeout is None else VisibilityTimeout)
        wanted = {*AttributeNames, *MessageSystemAttributeNames}
        return {"Messages": [_shown(message, wanted, MessageAttributeNames) for message in taken]} if taken else {}

    @_alone
    def delete_message_batch(self, QueueUrl: str, Entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        queue = self._queue(QueueUrl)
        _check_batch(Entries)
        failed = [
            {"Id": entry["Id"], "Code": "InternalError", "SenderFault": False} for entry in Entries if self.unlucky()
        ]
        lucky = [entry for entry in Entries if entry["Id"] not in {f["Id"] for f in failed}]
        for entry in lucky:
            # A handle that is not the last one is accepted and deletes nothing.
            for message in [m for m in queue.messages.values() if m.handle == entry["ReceiptHandle"]]:
                del queue.messages[message.id]
                queue.deleted.append(message.id)
        return {"Successful": [{"Id": entry["Id"]} for entry in lucky], "Failed": failed}

    @_alone
    def change_message_visibility_batch(self, QueueUrl: str, Entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        queue, now = self._queue(QueueUrl), self.clock()
        _check_batch(Entries)
        done: list[dict[str, Any]] = []
        failed: list[dict[str, Any]] = []
        for entry in Entries:
            held = [m for m in queue.messages.values() if m.handle == entry["ReceiptHandle"] and m.visible > now]
            for message in held:
                message.visible = now + entry.get("VisibilityTimeout", 0)
            refused = {"Id": entry["Id"], "Code": "MessageNotInflight", "SenderFault": True}
            (done if held else failed).append({"Id": entry["Id"]} if held else refused)
        return {"Successful": done, "Failed": failed}

    def _name(self, url: str) -> str:
        return url.rpartition("/")[2]

    def _queue(self, url: str) -> Queue:
        if (queue := self.queues.get(self._name(url))) is None:
            raise Fault("QueueDoesNotExist", "The specified queue does not exist.")
        return queue

    def _send(self, url: str, body: str, attributes: Mapping[str, Any], delay: int) -> dict[str, Any]:
        queue, now = self._queue(url), self.clock()
        message = Message(body, attributes, now, now + delay)
        queue.messages[message.id] = message
        return {"MessageId": message.id, "MD5OfMessageBody": _md5(body)}

    def _hand_out(self, message: Message, now: float, visibility: float) -> None:
        again = self.random.random() < self.duplicates
        message.visible = now if again else now + visibility
        message.handle = uuid4().hex
        message.receives += 1
        message.first_received = message.first_received or now

    def _move_dead(self, queue: Queue, now: float) -> None:
        if not queue.dead_letters:
            return
        for message in list(queue.messages.values()):
            if message.visible <= now and message.receives >= queue.most_receives:
                self.queues[queue.dead_letters].messages[message.id] = queue.messages.pop(message.id)
                message.receives = 0


def _check_batch(entries: Sequence[Mapping[str, Any]]) -> None:
    if not entries:
        raise Fault("EmptyBatchRequest")
    if len(entries) > LARGEST_BATCH:
        raise Fault("TooManyEntriesInBatchRequest")
    if len({entry["Id"] for entry in entries}) != len(entries):
        raise Fault("BatchEntryIdsNotDistinct")


def _shown(message: Message, system: Collection[str], own: Collection[str]) -> dict[str, Any]:
    values = {
        "SentTimestamp": round(message.sent * 1000),
        "ApproximateReceiveCount": message.receives,
        "ApproximateFirstReceiveTimestamp": round(message.first_received * 1000),
    }
    shown = {name: str(value) for name, value in values.items() if name in system or "All" in system}
    attributes = {n: v for n, v in message.attributes.items() if n in own or "All" in own}
    return {
        "MessageId": message.id,
        "ReceiptHandle": message.handle,
        "Body": message.body,
        "MD5OfBody": _md5(message.body),
        **({"Attributes": shown} if shown else {}),
        **({"MessageAttributes": attributes} if attributes else {}),
    }


def _size(body: str, attributes: Mapping[str, Any] | None) -> int:
    of_attributes = (
        len(name.encode()) + len(value["DataType"].encode()) + len(value.get("StringValue", "").encode())
        for name, value in (attributes or {}).items()
    )
    return len(body.encode()) + sum(of_attributes)


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
