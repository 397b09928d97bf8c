"""What a run's workers have done so far: receipts, failures, where they ran, what they used.
Plain data: drive.py fills it, materialization.py reads it."""

from __future__ import annotations

from dataclasses import dataclass, field

from lakehouse_assets.protocol.receipts import Receipt
from lakehouse_assets.run.plan import Chunk
from resources.launchers.base import Usage


@dataclass(frozen=True)
class WorkerFailure:
    """Why a chunk has no receipt. traceback: the step's own frames, empty when the worker could not say. log: the last
    lines of the worker's own log, where the run's logs don't have it."""

    chunk: Chunk
    message: str
    traceback: str = ""
    log: str = ""


@dataclass
class Staging:
    """What a run's workers have done so far. links: by chunk ordinal. usages: of all attempts, failed ones too.
    waiting: whether a chunk has waited noticeably for a slot that others hold."""

    receipts: dict[int, Receipt] = field(default_factory=dict)
    failures: list[WorkerFailure] = field(default_factory=list)
    links: dict[int, str] = field(default_factory=dict)
    usages: list[Usage] = field(default_factory=list)
    running: int = 0
    waiting: bool = False
