"""The launcher contract: starts, finds, watches and cancels workers. Slots and retries are the poll loop's (drive/)."""

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
    """One attempt at one piece of work: group, subject, ordinal and number identify it."""

    group: str
    """The run token, the same for all runs of a resume chain."""
    subject: str
    """The work's owner, such as a table's identifier."""
    ordinal: int
    """From 0 within its group."""
    work: str
    """A hash of everything that decides the result; a worker with another hash is useless here."""
    payload: Mapping[str, Any]
    """The worker's task, opaque to launchers: a JSON object with a ``kind``."""
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    """Without secrets; the payload repeats what the work needs."""
    number: int = 1
    """From 1, over all runs of the group."""
    size: Size = field(default_factory=Size)
    tags: Mapping[str, str] = field(default_factory=dict)
    """For the service's lists (run, asset, partitions)."""
    timeout: timedelta | None = None
    """None sets no limit."""
    packages: tuple[str, ...] = ()
    """Top-level packages of the worker's code, without this library."""

    @property
    def key(self) -> str:
        """32 hex digits, the same in every process, so that a service starts only one worker."""
        identity = f"{self.group} {self.subject} {self.ordinal} {self.number}"
        return hashlib.sha256(identity.encode()).hexdigest()[:32]

    @property
    def title(self) -> str:
        """For the service's console; ends with the key, to find the worker again."""
        return f"{self.subject} chunk {self.ordinal} attempt {self.number} {self.key}"


@dataclass(frozen=True)
class Ended:
    """The end of a worker. Only its receipt says whether the work succeeded."""

    reason: str
    """The reason and what to do; continues "the worker …"."""
    transient: bool = False
    """Whether the attempt may succeed elsewhere or later (a Spot interruption, a lost host)."""
    stopped: bool = False
    """Whether somebody stopped the worker."""


class NotStarted(Exception):
    """The service started no worker.

    unconfirmed: no answer came, so a worker may run after all. The attempt is repeated with the same key, so that no
    second worker starts.
    """

    def __init__(self, reason: str, *, transient: bool, unconfirmed: bool = False) -> None:
        super().__init__(reason)
        self.transient, self.unconfirmed = transient, unconfirmed


@dataclass(frozen=True)
class Usage:
    """A worker's usage."""

    vcpu_hours: float
    gib_hours: float
    estimated_usd: float
    source: str
    """Where the numbers come from."""


@dataclass(frozen=True)
class Handle:
    """A started worker."""

    id: str
    """The service's name for the worker (a pid, a task ARN); if the launcher is durable, valid in any process."""
    state: Any = None
    """The launcher's own, for this process only."""
    began: datetime | None = None
    """With a timezone, if known at the start."""
    asked: datetime | None = None
    """When another process requested the worker, with a timezone. If the service does not list the worker, this tells
    whether it is too new to be listed, or forgotten."""


class PolledReader(dg.PipesMessageReader):
    """Reads Pipes messages when the poll loop calls; Dagster's readers keep a thread for each worker."""

    handler: dg.PipesMessageHandler
    """Set in read_messages()."""

    @abstractmethod
    def read(self) -> None:
        """Passes new messages to the session."""

    def pass_on(self, line: str | bytes) -> None:
        """Passes on one line; the session logs it if it is no message. Never raises: only the receipt counts."""
        try:
            self.handler.handle_message(json.loads(line))
        except Exception:
            self.handler.report_pipes_framework_exception(f"reading the message {line[:200]!r}", sys.exc_info())


class Launcher(Protocol):
    """Runs workers somewhere; by default they end with this process."""

    durable: bool = False
    """Whether a later process can find the workers."""
    blocking: bool = False
    """Whether submit() returns only when the worker has ended."""
    poll_seconds: float = 0.1
    """The time between two calls of poll()."""

    def pipes(self, attempt: Attempt) -> tuple[dg.PipesContextInjector, PolledReader]:
        """Returns the two ends of a new Pipes session."""

    def submit(self, attempt: Attempt, environment: Mapping[str, str]) -> Handle:
        """Starts a worker, or returns the one with this attempt's key. Raises NotStarted."""

    def find(self, attempt: Attempt) -> Handle | None:
        """Finds the attempt's worker, running or ended."""
        return None

    def poll(self, handles: Sequence[Handle]) -> Mapping[str, Ended]:
        """Returns the ended workers by handle id, with few calls."""

    def began(self, handle: Handle) -> datetime | None:
        """Returns when the worker began, with a timezone; None while it waits for a machine."""
        return handle.began

    def cancel(self, handles: Sequence[Handle]) -> None:
        """Ends the workers and everything they started; ignores ended ones."""

    def link(self, handle: Handle) -> str:
        """Returns where to look at the worker."""

    def tail(self, handle: Handle) -> str:
        """Returns the last lines of a failed worker's driver log; empty if the run's own logs have them."""
        return ""

    def usage(self, handle: Handle) -> Usage | None:
        """Returns an ended worker's usage; None if nothing is billed."""
        return None


@dataclass
class Patience:
    """Measures a series of failures; a success ends it."""

    seconds: float
    """The longest series allowed."""
    since: float | None = None
    """time.monotonic() at the first failure of the series; None while there is none."""

    def failed(self, now: float) -> bool:
        """Whether the series is now too long. now: from time.monotonic()."""
        if self.since is None:
            self.since = now
        return now - self.since > self.seconds

    def succeeded(self) -> None:
        """Ends the series."""
        self.since = None
