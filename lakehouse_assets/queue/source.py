"""Where messages come from: the protocol of a queue, and SQS."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from lakehouse_assets.environment.aws import client
from lakehouse_assets.environment.settings import QueueSettings


class SourceError(RuntimeError):
    """A call that a source has refused, or that did not reach it."""


@dataclass(frozen=True)
class Message:
    """A message that a source has handed out."""

    id: str
    """The same whenever the message is handed out."""
    body: str
    sent_ms: int
    """The time when it was sent, in milliseconds since 1970."""
    receipt: object = None
    """What the source needs to know a message by when it is acknowledged; nobody else looks into it."""
    reason: str = ""
    """Of a message that was rejected before: why."""


class Source(Protocol):
    """Hands out messages until they are acknowledged, each at least once, in any order.

    Each method but claim() may be called by several threads at once, and raises SourceError where the source refuses
    the call or can't be reached. What a process has received and not acknowledged when it dies must come again.
    """

    @property
    def batch(self) -> int:
        """The most messages of one receive() or ack()."""

    def claim(self, owner: str) -> None:
        """Makes the source this code location's if it is nobody's. Raises SourceError if it is another's, too.

        Another location would reject the messages that it does not know. owner: the same in all its processes.
        """

    def depth(self) -> Mapping[str, int]:
        """Returns about how many messages there are, by what a person calls their state."""

    def receive(self, most: int) -> Sequence[Message]:
        """Returns messages, and hands them to nobody else for as long as a tick lasts; none if there seem to be none.

        most: how many at most, from 1 to ``batch``.
        """

    def ack(self, messages: Sequence[Message]) -> int:
        """Deletes messages, at most ``batch``, and returns how many of them are gone."""

    def reject(self, body: str, reason: str) -> None:
        """Keeps a message that nobody can act on for a person, durably. It must still be acknowledged, if received."""


BATCH = 10
"""The most messages that one call to SQS takes or gives."""
VISIBILITY_SECONDS = 120
"""The visibility timeout of what a tick received, longer than any tick: until then nobody else receives it."""
HELD_SECONDS = 300
"""The visibility timeout of dead letters that were read: longer than reading them all takes."""
MOST_LETTERS = 10_000
"""The number of dead letters after which reading stops."""
ATTEMPTS, READ_SECONDS = 2, 5
"""The limits of each call: the next tick is the next attempt, and a tick has 60 s."""
LARGEST = 1024 * 1024
"""The most bytes of a message with its attributes
(https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/quotas-messages.html)."""
REASON, SENT = "reason", "SentTimestamp"
REASON_BYTES = 1000
"""The most bytes of a reason in UTF-8."""
UNSENDABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""The characters that SQS refuses in a message and its attributes
(https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessage.html)."""
TAG = "lakehouse-location"
UNTAGGABLE = re.compile(r"[^\w .:/=+@-]")
"""The characters that SQS refuses in a tag
(https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_TagQueue.html)."""


@dataclass(frozen=True)
class SqsQueue:
    """A standard queue of Amazon SQS, with its dead-letter queue. It is a Source."""

    client: Any
    """A boto3 client."""
    url: str
    dead_letters: str
    """The URL of the dead-letter queue."""
    batch: int = BATCH

    def claim(self, owner: str) -> None:
        """Writes the owner into a tag of the queue: locations may share nothing else.

        If two locations begin at the same moment, the one that wrote last has it from its next tick on.
        """
        name = UNTAGGABLE.sub("_", owner)
        tags = self._call("list_queue_tags", self.url).get("Tags", {})
        if TAG not in tags:
            self._call("tag_queue", self.url, Tags={TAG: name})
        elif tags[TAG] != name:
            raise SourceError(
                f"the queue {self.url} is of the code location {tags[TAG]}, as its tag {TAG} says; this one is "
                f"{name}. One queue, one location: give this one a queue of its own, or remove the tag if the "
                "other one is gone"
            )

    def depth(self) -> Mapping[str, int]:
        """Returns how many messages can be received now, were received and not deleted, can be received later."""
        names = {"visible": "", "in_flight": "NotVisible", "delayed": "Delayed"}
        wanted = {name: f"ApproximateNumberOfMessages{of_aws}" for name, of_aws in names.items()}
        found = self._call("get_queue_attributes", self.url, AttributeNames=list(wanted.values()))["Attributes"]
        return {name: int(found[of_aws]) for name, of_aws in wanted.items()}

    def receive(self, most: int) -> list[Message]:
        """Receives messages. One empty answer is enough: a call that waits asks all of SQS's servers."""
        return self._receive(self.url, most, VISIBILITY_SECONDS)

    def ack(self, messages: Sequence[Message]) -> int:
        """Deletes messages, by the handle of their last receive, and returns how many SQS has deleted."""
        return self._delete(self.url, messages)

    def reject(self, body: str, reason: str) -> None:
        """Sends a message to the dead-letter queue, by itself: ten long ones are too much for a call."""
        attributes = reason_attribute(reason, len(body.encode()))
        self._call("send_message", self.dead_letters, MessageBody=body, MessageAttributes=attributes)

    def rejected(self) -> list[Message]:
        """Receives all dead letters, each once, until there are MOST_LETTERS of them.

        Nobody else gets them until give_back(), or for HELD_SECONDS.
        """
        found: dict[str, Message] = {}
        while len(found) < MOST_LETTERS and (messages := self._receive(self.dead_letters, BATCH, HELD_SECONDS)):
            found.update({message.id: message for message in messages})
        return list(found.values())

    def send_again(self, messages: Sequence[Message]) -> None:
        """Sends dead letters to the queue, unchanged, and only then deletes each of them.

        One that is sent and not deleted comes twice, which does no harm.
        """
        for message in messages:
            self._call("send_message", self.url, MessageBody=message.body)
            self._delete(self.dead_letters, [message])

    def give_back(self, messages: Sequence[Message]) -> None:
        """Lets others receive these dead letters at once."""
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
    reason = found.get("MessageAttributes", {}).get(REASON, {}).get("StringValue", "received too often")
    return Message(found["MessageId"], found["Body"], int(found["Attributes"][SENT]), found["ReceiptHandle"], reason)


def _entries(messages: Sequence[Message], **more: Any) -> list[dict[str, Any]]:
    return [{"Id": str(n), "ReceiptHandle": message.receipt, **more} for n, message in enumerate(messages)]


def reason_attribute(reason: str, body_bytes: int) -> dict[str, Any]:
    """Returns the attribute of a dead letter that says why it is one; none where the body leaves no room for it."""
    around = len(REASON) + len("String")
    room = min(REASON_BYTES, LARGEST - body_bytes - around)
    text = UNSENDABLE.sub("\ufffd", reason).encode()[: max(0, room)].decode(errors="ignore")
    return {REASON: {"DataType": "String", "StringValue": text}} if text else {}


def sqs_queue(queue: QueueSettings) -> SqsQueue:
    """Returns the queue of the settings."""
    return SqsQueue(sqs_client(), queue.url, queue.dead_letters)


@cache
def sqs_client() -> Any:
    """Returns the process' one client: making one takes a quarter of a second."""
    return client("sqs", ATTEMPTS, read_timeout=READ_SECONDS)
