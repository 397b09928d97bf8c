"""Reads the dead-letter queue, and sends messages of it once more: sent to the queue, and only then deleted.
Which ones is the redrive job's choice; how they came there is intake.py's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lakehouse_assets.queue.intake import BATCH, REASON, Message
from lakehouse_assets.queue.route import Routes, Wanted

HELD_SECONDS = 300
"""For which nobody else is handed what was read: longer than reading them all takes."""
MOST = 10_000
"""Messages that are read at once."""


@dataclass(frozen=True)
class Letter:
    """A message of the dead-letter queue. wanted: the partitions that it asks for, as far as it can be read by now.
    reason: why it can't, or why it came here."""

    message: Message
    wanted: tuple[Wanted, ...]
    reason: str


@dataclass(frozen=True)
class DeadLetters:
    """sqs: a boto3 client. queue, dead_letters: URLs."""

    sqs: Any
    queue: str
    dead_letters: str
    routes: Routes

    def read(self) -> list[Letter]:
        """All, each once; until give_back(), or for HELD_SECONDS, nobody else gets them. Raises what boto3 raises."""
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
        """To the queue, as they came. What is sent and not deleted comes twice, which does no harm. Raises what boto3
        raises."""
        for letter in letters:
            self.sqs.send_message(QueueUrl=self.queue, MessageBody=letter.message["Body"])
            handle = letter.message["ReceiptHandle"]
            self.sqs.delete_message_batch(QueueUrl=self.dead_letters, Entries=[{"Id": "0", "ReceiptHandle": handle}])

    def give_back(self, letters: Sequence[Letter]) -> None:
        """Let others receive them at once. Raises what boto3 raises."""
        for start in range(0, len(letters), BATCH):
            entries = [
                {"Id": str(n), "ReceiptHandle": letter.message["ReceiptHandle"], "VisibilityTimeout": 0}
                for n, letter in enumerate(letters[start : start + BATCH])
            ]
            self.sqs.change_message_visibility_batch(QueueUrl=self.dead_letters, Entries=entries)
