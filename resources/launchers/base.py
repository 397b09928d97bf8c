"""The launcher contract: start, find, watch and cancel workers somewhere, and describe them.
Slots, retries and verdicts are written once, for all launchers, by who drives the work (drive/)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from resources.sizes import Size

if TYPE_CHECKING:
    from dagster import PipesContextInjector

    from resources.launchers.polled_reader import PolledReader


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
    """How a worker ended.

    reason: its service's reason and what to do, for a person; it continues a sentence that begins with "the worker",
    such as "was stopped: …". It does not say whether the work succeeded: the proof does.
    transient: whether the same attempt elsewhere or later may well succeed (a Spot interruption, no capacity, a lost
    host). stopped: whether somebody asked its service to end it.
    """

    reason: str
    transient: bool = False
    stopped: bool = False


class NotStarted(Exception):
    """The service started no worker, for the reason that the message gives.

    transient: as in Ended. unconfirmed: no answer came, so a worker may run after all; the attempt is repeated with the
    same key, so that no second one starts.
    """

    def __init__(self, reason: str, *, transient: bool, unconfirmed: bool = False) -> None:
        super().__init__(reason)
        self.transient, self.unconfirmed = transient, unconfirmed


@dataclass(frozen=True)
class Usage:
    """What a worker used. estimated_usd: by the prices in prices.py. source: where the numbers come from."""

    vcpu_hours: float
    gib_hours: float
    estimated_usd: float
    source: str


@dataclass(frozen=True)
class Handle:
    """One started worker.

    id: the service's own name for it (a pid, a task ARN); if the launcher is durable, another process can watch the
    worker by it. state: the launcher's own, for this process only.
    began: when it began to work, with a timezone, if that is known at its start.
    asked: when another process asked for it, with a timezone. If the service does not know a worker that was asked for
    long ago, it has forgotten it; a recent one it may not list yet.
    """

    id: str
    state: Any = None
    began: datetime | None = None
    asked: datetime | None = None


class Launcher(Protocol):
    """Where workers run.

    durable: whether workers outlive this process, so that a later one can find them.
    blocking: whether a worker runs in this process, so that submit returns when it has ended.
    poll_seconds: how often the service should be asked.
    """

    durable: bool
    blocking: bool
    poll_seconds: float

    def pipes(self, attempt: Attempt) -> tuple[PipesContextInjector, PolledReader]:
        """The Pipes session's two ends, new ones for each attempt."""
        ...

    def submit(self, attempt: Attempt, environment: Mapping[str, str]) -> Handle:
        """Start a worker, or return the one that was started with this attempt's key already.

        environment: the Pipes variables that the worker needs. Raises NotStarted.
        """
        ...

    def find(self, attempt: Attempt) -> Handle | None:
        """The worker, running or ended, that was started with the attempt's key; None when there is none."""
        ...

    def poll(self, handles: Sequence[Handle]) -> Mapping[str, Ended]:
        """Those of the workers that have ended, by their handles' ids, with as few calls as the service allows."""
        ...

    def began(self, handle: Handle) -> datetime | None:
        """When the worker began to work, with a timezone, as seen by poll(); None while it waits for a machine."""
        ...

    def cancel(self, handles: Sequence[Handle]) -> None:
        """End the workers and all that they started. A worker that has ended already is no error."""
        ...

    def link(self, handle: Handle) -> str:
        """Where a person looks at the worker."""
        ...

    def tail(self, handle: Handle) -> str:
        """The last lines of the driver's log, for a worker that failed; empty if they are in the run's own logs."""
        ...

    def usage(self, handle: Handle) -> Usage | None:
        """What an ended worker used, as seen by poll(); None where nothing is billed."""
        ...
