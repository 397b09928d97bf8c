"""Message queues: the protocol, and SQS."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from lakehouse_assets.environment.aws import client
from lakehouse_assets.environment.settings import QueueSettings


class SourceError(RuntimeError):
    """The source refused or is unreachable."""


@dataclass(frozen=True)
class Message:
    """A received message."""

    id: str
    """The same at each delivery."""
    body: str
    sent_ms: int
    receipt: object = None
    """To acknowledge it; opaque."""
    reason: str = ""
    """Why it was rejected. Means nothing unless it is a dead letter."""


class Source(Protocol):
    """Delivers messages until they are acknowledged, each at least once, in any order.

    Threads may call all methods but claim(). All raise SourceError if the source refuses or can't be reached. After a
    process dies, messages that it did not acknowledge must come again.
    """

    @property
    def batch(self) -> int:
        """The most messages of one receive() or ack()."""

    def claim(self, owner: str) -> None:
        """Claims the source, or raises SourceError if another code location has it.

        Locations would reject each other's messages. owner: the same text in all processes of a code location.
        """

    def depth(self) -> Mapping[str, int]:
        """Returns approximate numbers of messages, by state."""

    def receive(self, most: int) -> Sequence[Message]:
        """Returns up to ``most`` (1 to ``batch``) messages, hidden from others for a tick."""

    def ack(self, messages: Sequence[Message]) -> int:
        """Deletes up to ``batch`` messages, and returns how many."""

    def reject(self, body: str, reason: str) -> None:
        """Keeps a message durably for a person; a received one must still be acknowledged."""


BATCH = 10
"""SQS's limit for a call."""
VISIBILITY_SECONDS = 120
"""How long received messages are hidden: longer than any tick."""
HELD_SECONDS = 300
"""How long dead letters are: longer than reading them all takes."""
MOST_LETTERS = 10_000
"""The most dead letters that rejected() returns."""
ATTEMPTS, READ_SECONDS = 2, 5
"""Few and short: a tick has 60 s, and the next one tries again."""
LARGEST = 1024 * 1024
"""Bytes of a message with attributes
(https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/quotas-messages.html)."""
REASON, SENT = "reason", "SentTimestamp"
"""Attributes of a message: a dead letter's reason, and SQS's own with the time of sending."""
REASON_BYTES = 1000
"""The most bytes of a reason."""
UNSENDABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What SQS refuses in messages and attributes
(https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessage.html)."""
TAG = "lakehouse-location"
"""The queue's tag that names the code location that has it."""
UNTAGGABLE = re.compile(r"[^\w .:/=+@-]")
"""What SQS refuses in tags
(https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_TagQueue.html)."""


@dataclass(frozen=True)
class SqsQueue:
    """A standard SQS queue with its dead-letter queue."""

    client: Any
    url: str
    dead_letters: str
    batch: int = BATCH

    def claim(self, owner: str) -> None:
        """Tags the queue with its owner, as locations may share nothing else.

        If two locations start at once, the last writer has the queue from its next tick on.
        """
        name = UNTAGGABLE.sub("_", owner)
        tags = self._call("list_queue_tags", self.url).get("Tags", {})
        if TAG not in tags:
            self._call("tag_queue", self.url, Tags={TAG: name})
        elif tags[TAG] != name:
            raise SourceError(
                f"the queue {self.url} belongs to the code location {tags[TAG]}, according to its tag {TAG}; this one "
                f"is {name}. Each location needs its own queue: give this one another queue, or remove the tag if the "
                "other location is gone"
            )

    def depth(self) -> Mapping[str, int]:
        """Counts visible, in-flight and delayed messages."""
        names = {"visible": "", "in_flight": "NotVisible", "delayed": "Delayed"}
        wanted = {name: f"ApproximateNumberOfMessages{of_aws}" for name, of_aws in names.items()}
        found = self._call("get_queue_attributes", self.url, AttributeNames=list(wanted.values()))["Attributes"]
        return {name: int(found[of_aws]) for name, of_aws in wanted.items()}

    def receive(self, most: int) -> list[Message]:
        """Returns messages; none only if none is there: a call that waits asks all of SQS's servers."""
        return self._receive(self.url, most, VISIBILITY_SECONDS)

    def ack(self, messages: Sequence[Message]) -> int:
        """Deletes messages by their last receipts."""
        return self._delete(self.url, messages)

    def reject(self, body: str, reason: str) -> None:
        """Sends the message to the dead-letter queue: one in each call, as ten long ones would exceed LARGEST."""
        attributes = reason_attribute(reason, len(body.encode()))
        self._call("send_message", self.dead_letters, MessageBody=body, MessageAttributes=attributes)

    def rejected(self) -> list[Message]:
        """Receives up to MOST_LETTERS letters, hidden until give_back() or for HELD_SECONDS."""
        found: dict[str, Message] = {}
        while len(found) < MOST_LETTERS and (messages := self._receive(self.dead_letters, BATCH, HELD_SECONDS)):
            found.update({message.id: message for message in messages})
        return list(found.values())

    def send_again(self, messages: Sequence[Message]) -> None:
        """Sends each letter to the queue, then deletes it. A letter that comes twice, after a crash, does no harm."""
        for message in messages:
            self._call("send_message", self.url, MessageBody=message.body)
            self._delete(self.dead_letters, [message])

    def give_back(self, messages: Sequence[Message]) -> None:
        """Makes dead letters visible at once."""
        for start in range(0, len(messages), BATCH):
            entries = _entries(messages[start : start + BATCH], VisibilityTimeout=0)
            self._call("change_message_visibility_batch", self.dead_letters, Entries=entries)

    def _receive(self, url: str, most: int, hidden_seconds: int) -> list[Message]:
        answer = self._call(
            "receive_message",
            url,
            MaxNumberOfMessages=most,
            VisibilityTimeout=hidden_seconds,
            WaitTimeSeconds=1,
            MessageSystemAttributeNames=[SENT],
            MessageAttributeNames=[REASON],
        )
        return [_message(found) for found in answer.get("Messages", ())]

    def _delete(self, url: str, messages: Sequence[Message]) -> int:
        answer = self._call("delete_message_batch", url, Entries=_entries(messages))
        return len(messages) - len(answer.get("Failed", ()))

    def _call(self, operation: str, url: str, **arguments: Any) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return getattr(self.client, operation)(QueueUrl=url, **arguments)
        except (BotoCoreError, ClientError) as error:
            raise SourceError(str(error)) from error


def _message(found: Mapping[str, Any]) -> Message:
    # SQS itself makes a dead letter, without this attribute, of a message that was received too often.
    reason = found.get("MessageAttributes", {}).get(REASON, {}).get("StringValue", "received too often")
    return Message(found["MessageId"], found["Body"], int(found["Attributes"][SENT]), found["ReceiptHandle"], reason)


def _entries(messages: Sequence[Message], **more: Any) -> list[dict[str, Any]]:
    return [{"Id": str(n), "ReceiptHandle": message.receipt, **more} for n, message in enumerate(messages)]


def reason_attribute(reason: str, body_bytes: int) -> dict[str, Any]:
    """Returns the attribute with a letter's reason, cut to the room that the body leaves; none if it leaves no room."""
    around = len(REASON) + len("String")
    room = min(REASON_BYTES, LARGEST - body_bytes - around)
    # errors="ignore": the cut may divide a character.
    text = UNSENDABLE.sub("\ufffd", reason).encode()[: max(0, room)].decode(errors="ignore")
    return {REASON: {"DataType": "String", "StringValue": text}} if text else {}


def sqs_queue(queue: QueueSettings) -> SqsQueue:
    """Returns the queue of the settings."""
    return SqsQueue(sqs_client(), queue.url, queue.dead_letters)


@cache
def sqs_client() -> Any:
    """Returns the process's client, which takes a quarter of a second to make."""
    return client("sqs", ATTEMPTS, read_timeout=READ_SECONDS)
