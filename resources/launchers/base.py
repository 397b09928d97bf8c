"""The launcher contract: start, find, watch and cancel workers somewhere, and describe them.
Slots, retries and verdicts are written once, for all launchers, by who drives the work (drive/)."""

from __future__ import annotations

import hashlib
import json
import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

import dagster as dg

from resources.sizes import Size

if TYPE_CHECKING:
    from dagster._core.pipes.context import PipesMessageHandler


@dataclass(frozen=True)
class Attempt:
    """One attempt at one piece of work; group, subject, ordinal and number identify it.

    group: the run token. subject: whose work it is, such as a table's identifier.
    ordinal: which piece of work of its group, from 0. number: from 1, over all runs of the group.
    work: hash of all that decides the result; a worker of other work is of no use to this attempt.
    payload: what the worker does, a JSON object with its ``kind``. Launchers do not look into it.
    spark_conf: Spark settings without secrets, also part of the payload where the work needs them.
    tags: for the service's own lists (run, asset, partitions).
    timeout: how long the worker may run; None sets no limit.
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
        """32 hex digits, the same in every process that makes this attempt, so that a service starts one worker."""
        identity = f"{self.group} {self.subject} {self.ordinal} {self.number}"
        return hashlib.sha256(identity.encode()).hexdigest()[:32]

    @property
    def title(self) -> str:
        """For a person reading the service's console; ends with the key."""
        return f"{self.subject} chunk {self.ordinal} attempt {self.number} {self.key}"


@dataclass(frozen=True)
class Ended:
    """How a worker ended.

    reason: its service's reason and what to do, continuing a sentence that begins with "the worker", such as "was
    stopped: …". It does not say whether the work succeeded: the proof does.
    transient: whether the same attempt may well succeed elsewhere or later (a Spot interruption, a lost host).
    stopped: whether somebody asked its service to end it.
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
    """What a worker used. source: where the numbers come from."""

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
    asked: when another process requested it, with a timezone. A service that does not know a worker may not list it
    yet; if the request is old, it has forgotten the worker.
    """

    id: str
    state: Any = None
    began: datetime | None = None
    asked: datetime | None = None


class PolledReader(dg.PipesMessageReader):
    """Dagster's own readers keep a thread for each worker; a run's poll loop calls this one from its only thread."""

    handler: PipesMessageHandler
    """Of the session; set in read_messages()."""

    @abstractmethod
    def read(self) -> None:
        """Pass the messages that have arrived to the session."""

    def pass_on(self, line: str | bytes) -> None:
        """Pass one line to the session, which logs it if it is no message. Never raises: the durable proof decides."""
        try:
            self.handler.handle_message(json.loads(line))
        except Exception:
            self.handler.report_pipes_framework_exception(f"reading the message {line[:200]!r}", sys.exc_info())


class Launcher(Protocol):
    """Where workers run. The defaults are those of launchers whose workers end with this process.

    durable: whether workers outlive this process, so that a later one can find them.
    blocking: whether a worker runs in this process, so that submit returns when it has ended.
    poll_seconds: between two calls of poll().
    """

    durable: bool = False
    blocking: bool = False
    poll_seconds: float = 0.1

    def pipes(self, attempt: Attempt) -> tuple[dg.PipesContextInjector, PolledReader]:
        """The Pipes session's two ends, new ones for each attempt."""

    def submit(self, attempt: Attempt, environment: Mapping[str, str]) -> Handle:
        """Start a worker, or return the one that has this attempt's key already. environment: the Pipes variables that
        the worker needs. Raises NotStarted."""

    def find(self, attempt: Attempt) -> Handle | None:
        """The worker, running or ended, with the attempt's key; None when there is none."""
        return None

    def poll(self, handles: Sequence[Handle]) -> Mapping[str, Ended]:
        """Those of the workers that have ended, by their handles' ids, with as few calls as the service allows."""

    def began(self, handle: Handle) -> datetime | None:
        """When the worker began to work, with a timezone, as seen by poll(); None while it waits for a machine."""
        return handle.began

    def cancel(self, handles: Sequence[Handle]) -> None:
        """End the workers and all that they started; those that have ended already are no error."""

    def link(self, handle: Handle) -> str:
        """Where a person looks at the worker."""

    def tail(self, handle: Handle) -> str:
        """The last lines of the driver's log, for a worker that failed; empty if they are in the run's own logs."""
        return ""

    def usage(self, handle: Handle) -> Usage | None:
        """What an ended worker used, as seen by poll(); None where nothing is billed."""
        return None
