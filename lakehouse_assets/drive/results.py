"""What a run's workers have done so far: their proofs, failures, where they ran, what they used.
Plain data: the loop's parts fill it, whoever drives the workers reads it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic

from lakehouse_assets.drive.chunk import Chunk
from lakehouse_assets.drive.proofs import Proof
from resources.launchers.base import Usage


@dataclass(frozen=True)
class WorkerFailure:
    """Why a chunk has no proof. traceback: of the worker's own code, empty when the worker could not report it. log:
    the last lines of the worker's own log, where the run's logs don't have it."""

    chunk: Chunk
    message: str
    traceback: str = ""
    log: str = ""


@dataclass
class Results(Generic[Proof]):
    """What a run's workers have done so far. proofs, links (where each worker is looked at): by chunk ordinal.
    usages: of all attempts, failed ones too. running: workers that run now. waiting: whether a chunk has waited
    noticeably for a slot that other runs hold."""

    proofs: dict[int, Proof] = field(default_factory=dict)
    failures: list[WorkerFailure] = field(default_factory=list)
    links: dict[int, str] = field(default_factory=dict)
    usages: list[Usage] = field(default_factory=list)
    running: int = 0
    waiting: bool = False
