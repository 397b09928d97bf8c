"""Reads the dead-letter queue, and sends messages of it once more: sent to the queue, and only then deleted.

Which ones is the redrive job's choice; how they came there is intake.py's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lakehouse_assets.queue.intake import BATCH, REASON, Message
from lakehouse_assets.queue.route import Routes, Wanted

HELD_SECONDS = 300
"""The visibility timeout of messages that were read: longer than reading them all takes."""
MOST = 10_000
"""The number of messages after which reading stops."""


@dataclass(frozen=True)
class Letter:
    """A message of the dead-letter queue."""

    message: Message
    wanted: tuple[Wanted, ...]
    """The partitions that it asks for, as far as it can be read by now."""
    reason: str
    """Why it can't be read by now; if it can, why it came here."""


@dataclass(frozen=True)
class DeadLetters:
    """A queue's dead-letter queue, and the queue that its messages came from."""

    sqs: Any
    """A boto3 client."""
    queue: str
    """The queue's URL."""
    dead_letters: str
    """The dead-letter queue's URL."""
    routes: Routes

    def read(self) -> list[Letter]:
        """Receives all messages, each once, until there are MOST of them.

        Nobody else gets them until give_back(), or for HELD_SECONDS. Raises what boto3 raises.
        """
        found: dict[str, Message] = {}
        while len(found) < MOST and (messages := self._receive()):
            found.update({message["MessageId"]: message for message in messages})
        return [self._letter(message) for message in found.values()]

    def _receive(self) -> Sequence[Message]:
        answer = self.sqs.receive_message(
            QueueUrl=self.dead_letters,
            MaxNumberOfMessages=BATCH,
            VisibilityTimeout=HELD_SECONDS,
            WaitTimeSeconds=1,
            MessageAttributeNames=[REASON],
        )
        return answer.get("Messages", ())  # type: ignore[no-any-return]

    def _letter(self, message: Message) -> Letter:
        reason = message.get("MessageAttributes", {}).get(REASON, {}).get("StringValue", "received too often")
        reading = self.routes.read(message["Body"])
        return Letter(message, reading.wanted, reading.problem or reason)

    def send(self, letters: Iterable[Letter]) -> None:
        """Sends messages to the queue, unchanged, and then deletes them here.

        A message that is sent and not deleted comes twice, which does no harm. Raises what boto3 raises.
        """
        for letter in letters:
            self.sqs.send_message(QueueUrl=self.queue, MessageBody=letter.message["Body"])
            handle = letter.message["ReceiptHandle"]
            self.sqs.delete_message_batch(QueueUrl=self.dead_letters, Entries=[{"Id": "0", "ReceiptHandle": handle}])

    def give_back(self, letters: Sequence[Letter]) -> None:
        """Lets others receive these messages at once. Raises what boto3 raises."""
        for start in range(0, len(letters), BATCH):
            entries = [
                {"Id": str(n), "ReceiptHandle": letter.message["ReceiptHandle"], "VisibilityTimeout": 0}
                for n, letter in enumerate(letters[start : start + BATCH])
            ]
            self.sqs.change_message_visibility_batch(QueueUrl=self.dead_letters, Entries=entries)
