"""The launcher contract: start, find, watch and cancel workers somewhere, and describe them.

Slots, retries and verdicts are written once, for all launchers, by who drives the work (drive/).
"""

from __future__ import annotations

import hashlib
import json
import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

import dagster as dg

from lakehouse_assets.environment.sizes import Size


@dataclass(frozen=True)
class Attempt:
    """One attempt at one piece of work; group, subject, ordinal and number identify it."""

    group: str
    """The run token."""
    subject: str
    """Whose work it is, such as a table's identifier."""
    ordinal: int
    """Which piece of work of its group it is, from 0."""
    work: str
    """A hash of all that decides the result; a worker of other work is of no use to this attempt."""
    payload: Mapping[str, Any]
    """What the worker does, a JSON object with its ``kind``. Launchers do not look into it."""
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    """Spark settings without secrets, also part of the payload where the work needs them."""
    number: int = 1
    """The attempt's number, from 1, over all runs of the group."""
    size: Size = field(default_factory=Size)
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags for the service's own lists (run, asset, partitions)."""
    timeout: timedelta | None = None
    """How long the worker may run; None sets no limit."""
    packages: tuple[str, ...] = ()
    """The top-level packages that the worker's code is in, beside this library."""

    @property
    def key(self) -> str:
        """The attempt's 32 hex digits, the same in every process that makes it, so that a service starts one worker."""
        identity = f"{self.group} {self.subject} {self.ordinal} {self.number}"
        return hashlib.sha256(identity.encode()).hexdigest()[:32]

    @property
    def title(self) -> str:
        """The attempt's title for a person who reads the service's console; it ends with the key."""
        return f"{self.subject} chunk {self.ordinal} attempt {self.number} {self.key}"


@dataclass(frozen=True)
class Ended:
    """The end of a worker. It does not say whether the work succeeded: the proof does."""

    reason: str
    """The service's reason and what to do, continuing a sentence that begins with "the worker", such as "was
    stopped: …"."""
    transient: bool = False
    """Whether the same attempt may well succeed elsewhere or later (a Spot interruption, a lost host)."""
    stopped: bool = False
    """Whether somebody asked the service to end the worker."""


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
    """The resources that a worker used."""

    vcpu_hours: float
    gib_hours: float
    estimated_usd: float
    source: str
    """Where the numbers come from."""


@dataclass(frozen=True)
class Handle:
    """One started worker."""

    id: str
    """The service's own name for the worker (a pid, a task ARN); if the launcher is durable, another process can watch
    the worker by it."""
    state: Any = None
    """The launcher's own state, for this process only."""
    began: datetime | None = None
    """When the worker began to work, with a timezone, if that is known at its start."""
    asked: datetime | None = None
    """When another process requested the worker, with a timezone. A service that does not know a worker may not list
    it yet; if the request is old, it has forgotten the worker."""


class PolledReader(dg.PipesMessageReader):
    """A reader of Pipes messages that the poll loop calls from its only thread; Dagster's keep one for each worker."""

    handler: dg.PipesMessageHandler
    """The session's message handler; set in read_messages()."""

    @abstractmethod
    def read(self) -> None:
        """Passes the messages that have arrived to the session."""

    def pass_on(self, line: str | bytes) -> None:
        """Passes one line to the session, which logs it if it is no message. Never raises: the durable proof counts."""
        try:
            self.handler.handle_message(json.loads(line))
        except Exception:
            self.handler.report_pipes_framework_exception(f"reading the message {line[:200]!r}", sys.exc_info())


class Launcher(Protocol):
    """The contract of a launcher, which runs workers somewhere.

    The defaults are those of launchers whose workers end with this process.
    """

    durable: bool = False
    """Whether workers outlive this process, so that a later one can find them."""
    blocking: bool = False
    """Whether a worker runs in this process, so that submit returns when it has ended."""
    poll_seconds: float = 0.1
    """The time between two calls of poll()."""

    def pipes(self, attempt: Attempt) -> tuple[dg.PipesContextInjector, PolledReader]:
        """Returns the Pipes session's two ends, new ones for each attempt."""

    def submit(self, attempt: Attempt, environment: Mapping[str, str]) -> Handle:
        """Starts a worker, or returns the one that has this attempt's key already.

        environment: the Pipes variables that the worker needs. Raises NotStarted.
        """

    def find(self, attempt: Attempt) -> Handle | None:
        """Finds the worker, running or ended, with the attempt's key; None when there is none."""
        return None

    def poll(self, handles: Sequence[Handle]) -> Mapping[str, Ended]:
        """Returns the workers that have ended, by their handles' ids, with as few calls as the service allows."""

    def began(self, handle: Handle) -> datetime | None:
        """Returns when the worker began, with a timezone, as seen by poll(); None while it waits for a machine."""
        return handle.began

    def cancel(self, handles: Sequence[Handle]) -> None:
        """Ends the workers and all that they started; those that have ended already are no error."""

    def link(self, handle: Handle) -> str:
        """Returns the place where a person looks at the worker."""

    def tail(self, handle: Handle) -> str:
        """Returns the last lines of a failed worker's driver log; empty if they are in the run's own logs."""
        return ""

    def usage(self, handle: Handle) -> Usage | None:
        """Returns what an ended worker used, as seen by poll(); None where nothing is billed."""
        return None


@dataclass
class Patience:
    """Measures a series of failures; a success ends it."""

    seconds: float
    """How long a series may last."""
    since: float | None = None
    """When the present series began; None while there is none."""

    def failed(self, now: float) -> bool:
        """Says whether the series, with this failure, has lasted too long. now: seconds, as of time.monotonic()."""
        if self.since is None:
            self.since = now
        return now - self.since > self.seconds

    def succeeded(self) -> None:
        """Ends the series, so that the next failure begins a new one."""
        self.since = None
