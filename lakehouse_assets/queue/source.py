"""A source of messages, as the queue sees it: what it must be able to do, whichever service it is.

Amazon SQS, the one that there is, is in sqs.py; what is done with the messages, in intake.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


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
