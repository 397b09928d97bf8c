"""The launcher contract: start, find, watch, cancel workers somewhere, and tell about them.
No slots, no retries, no verdicts: those are written once around it (drive/drive.py)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

LEAST_MEMORY_GIB = 2
"""Of a worker: half is its heap, the rest for Python and what a JVM needs beside its heap."""


@dataclass(frozen=True)
class Size:
    """What a worker gets where it has a machine of its own; None leaves it to the environment's setting."""

    vcpus: float | None = None
    memory_gib: float | None = None
    disk_gib: int | None = None


@dataclass(frozen=True)
class Attempt:
    """One attempt at one piece of work: what a worker is started for.

    group: the run token; group, subject, ordinal and number identify an attempt.
    subject: whose work it is, such as a table's identifier.
    ordinal: which piece of work of its group, from 0.
    work: hash of all that decides the result; a worker of other work is of no use to this attempt.
    payload: what the worker does, a JSON object with its ``kind``. Launchers hand it on and do not look into it.
    spark_conf: Spark settings without secrets, also part of the payload where the work needs them.
    number: from 1, over all runs of the group. tags: for the service's own lists (run, asset, partitions).
    timeout: how long the worker may run, from its beginning; None sets no limit.
    """

    group: str
    subject: str
    ordinal: int
    work: str
    payload: Mapping[str, Any]
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    number: int = 1
    size: Size = field(default_factory=Size)
    tags: Mapping[str, str] = field(default_factory=dict)
    timeout: timedelta | None = None

    @property
    def key(self) -> str:
        """32 hex digits, the same in every process that makes this attempt: a service that is asked twice with one key
        starts one worker."""
        identity = f"{self.group} {self.subject} {self.ordinal} {self.number}"
        return hashlib.sha256(identity.encode()).hexdigest()[:32]

    @property
    def title(self) -> str:
        """For a person reading the service's console; ends with the key."""
        return f"{self.subject} chunk {self.ordinal} attempt {self.number} {self.key}"


@dataclass(frozen=True)
class Ended:
    """A worker that runs no more.

    reason: what its service says of it and what to do, for a person; no verdict (receipts decide). Reads behind
    "the worker": "was stopped: …". transient: whether the same attempt elsewhere or later may well succeed (a Spot
    interruption, no capacity, a lost host). stopped: whether somebody asked its service to end it.
    """

    reason: str
    transient: bool = False
    stopped: bool = False


class NotStarted(Exception):
    """The service started no worker: what it said and what to do. transient: as in Ended. unheard: no answer came, so
    there may be a worker after all; the attempt is made again with the same key."""

    def __init__(self, reason: str, *, transient: bool, unheard: bool = False) -> None:
        super().__init__(reason)
        self.transient, self.unheard = transient, unheard


@dataclass(frozen=True)
class Usage:
    """What a worker used. estimated_usd: by resources/launchers/prices.py. source: how the numbers were found."""

    vcpu_hours: float
    gib_hours: float
    estimated_usd: float
    source: str


@dataclass(frozen=True)
class Handle:
    """One started worker. id: the service's own name for it (a pid, a task ARN), enough to watch it from another
    process where the launcher is durable. state: the launcher's own, for this process only. began: when it began to
    work (aware), where that is known at its start. asked: when another process asked for it (aware): a service that
    doesn't know it has forgotten it, and is not about to learn of it."""

    id: str
    state: Any = None
    began: datetime | None = None
    asked: datetime | None = None


class Launcher(Protocol):
    """Where workers run.

    durable: whether workers outlive this process, so that a later one finds them again.
    blocking: whether workers run in this process, and submit returns when they have ended.
    poll_seconds: how often asking is worth its calls.
    """

    durable: bool
    blocking: bool
    poll_seconds: float

    def pipes(self, attempt: Attempt) -> tuple[Any, Any]:
        """A PipesContextInjector and a PipesMessageReader, new ones for each attempt. The reader has a method
        ``read()`` that hands over what has arrived: the poll loop calls it, so no reader needs a thread."""
        ...

    def submit(self, attempt: Attempt, environment: Mapping[str, str]) -> Handle:
        """Start a worker, or return the one this attempt's key has started already.

        environment: the Pipes variables to hand over. Raises NotStarted.
        """
        ...

    def find(self, attempt: Attempt) -> Handle | None:
        """The worker, running or ended, that was started with the attempt's key; None when there is none."""
        ...

    def poll(self, handles: Sequence[Handle]) -> Mapping[str, Ended]:
        """Those of the handles that ended, by id. Many at once, in as few calls as the service allows."""
        ...

    def began(self, handle: Handle) -> datetime | None:
        """When the worker began to work (aware), from what poll() has seen of it; None while it waits for a machine."""
        ...

    def cancel(self, handles: Sequence[Handle]) -> None:
        """End the workers and all they started. Those that ended already are no error."""
        ...

    def link(self, handle: Handle) -> str:
        """Where a person looks at the worker."""
        ...

    def tail(self, handle: Handle) -> str:
        """The last lines of the driver's log, for a worker that failed; empty where the run's own logs have them."""
        ...

    def usage(self, handle: Handle) -> Usage | None:
        """What an ended worker used, from what poll() has seen of it; None where nothing is billed."""
        ...
