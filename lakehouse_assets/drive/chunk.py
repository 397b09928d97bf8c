"""A chunk, which is one worker's share of a run; the proof that its work is done; and what came of a run's chunks.

Plain data: the loop's parts fill it. How a run is cut into chunks is run/plan.py's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from lakehouse_assets.keys_text import keys_text
from lakehouse_assets.protocol.assignment import Cause
from resources.launchers.base import Attempt, Usage

Proof = TypeVar("Proof")
ProofFound = TypeVar("ProofFound", covariant=True)


@dataclass(frozen=True)
class Chunk:
    """One worker's share of a run."""

    ordinal: int
    """Its place among the run's chunks, from 0."""
    keys: tuple[str, ...]
    """The partition keys that it covers; empty for a whole table."""

    def __str__(self) -> str:
        return keys_text(self.keys)


class Proofs(Protocol[ProofFound]):
    """Recognises the proofs of one kind of work. The loop only hands a proof on, so it may have any shape."""

    def parse(self, reported: object, attempt: Attempt) -> ProofFound | None:
        """Returns the proof that a worker reported for the attempt, as ``{"proof": reported}``.

        Returns None for anything else, as the worker's own code may report what it likes.
        """
        ...

    def find(self, ordinals: Iterable[int]) -> Mapping[int, ProofFound]:
        """Finds the durable proofs of these chunks that exist and fit the run's work, by ordinal.

        Raises OSError while the storage can't be read: an unreadable proof is not a missing one.
        """
        ...


@dataclass(frozen=True)
class WorkerFailure:
    """The reason why a chunk has no proof."""

    chunk: Chunk
    message: str
    traceback: str = ""
    """The traceback of the worker's own code; empty when the worker could not report it."""
    log: str = ""
    """The last lines of the worker's own log, where the run's logs don't have it."""
    bad: tuple[str, ...] = ()
    """The chunk's partitions that the step named as the reason."""
    cause: Cause = Cause.WORKER


@dataclass
class Results(Generic[Proof]):
    """The results of a run's workers so far."""

    proofs: dict[int, Proof] = field(default_factory=dict)
    """The proofs by chunk ordinal."""
    failures: list[WorkerFailure] = field(default_factory=list)
    links: dict[int, str] = field(default_factory=dict)
    """Links to each worker's page or log, by chunk ordinal."""
    usages: list[Usage] = field(default_factory=list)
    """The usages of all attempts, failed ones too."""
    running: int = 0
    """Number of running workers."""
    waiting: bool = False
    """Whether a chunk has waited noticeably for a slot that other runs hold."""
