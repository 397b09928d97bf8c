"""A chunk, which is one worker's share of a run; the proof that its work is done; and what came of a run's chunks.
Plain data: the loop's parts fill it. How a run is cut into chunks is run/plan.py's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from lakehouse_assets.keys_text import keys_text
from resources.launchers.base import Attempt, Usage

Proof = TypeVar("Proof")
ProofFound = TypeVar("ProofFound", covariant=True)


@dataclass(frozen=True)
class Chunk:
    """ordinal: from 0. keys: the partition keys it covers, none for a whole table."""

    ordinal: int
    keys: tuple[str, ...]

    def __str__(self) -> str:
        return keys_text(self.keys)


class Proofs(Protocol[ProofFound]):
    """Recognises the proofs of one kind of work. The loop only hands a proof on, so it may have any shape."""

    def parse(self, reported: object, attempt: Attempt) -> ProofFound | None:
        """The proof that a worker reported for the attempt, as ``{"proof": reported}``; None for anything else, as the
        worker's own code may report what it likes."""
        ...

    def find(self, ordinals: Iterable[int]) -> Mapping[int, ProofFound]:
        """The durable proofs of these chunks that exist and fit the run's work, by ordinal.

        Raises OSError while the storage can't be read: an unreadable proof is not a missing one.
        """
        ...


class Cause(StrEnum):
    """Whose fault it is that a chunk has no proof."""

    DECLARATION = "declaration"
    """What is declared of the table can't work."""
    INPUT = "input"
    """What the step read is missing or wrong."""
    STEP = "step"
    """The step raised, for whatever reason."""
    WORKER = "worker"
    """The worker was lost, could not be started or ended without a word."""


@dataclass(frozen=True)
class WorkerFailure:
    """Why a chunk has no proof. traceback: of the worker's own code, empty when the worker could not report it. log:
    the last lines of the worker's own log, where the run's logs don't have it. bad: the chunk's partitions that the
    step named as the reason."""

    chunk: Chunk
    message: str
    traceback: str = ""
    log: str = ""
    bad: tuple[str, ...] = ()
    cause: Cause = Cause.WORKER


@dataclass
class Results(Generic[Proof]):
    """What a run's workers have done so far. proofs, links (to each worker's page or log): by chunk ordinal. usages: of
    all attempts, failed ones too. running: number of workers. waiting: whether a chunk has waited noticeably for a slot
    that other runs hold."""

    proofs: dict[int, Proof] = field(default_factory=dict)
    failures: list[WorkerFailure] = field(default_factory=list)
    links: dict[int, str] = field(default_factory=dict)
    usages: list[Usage] = field(default_factory=list)
    running: int = 0
    waiting: bool = False
