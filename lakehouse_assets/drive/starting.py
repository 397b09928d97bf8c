"""Gives a chunk its worker: the one that an earlier process started and that still runs, or a new one.

When a chunk is due and whether it has a slot is the loop's; what becomes of its worker is judging.py's.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Generic

from lakehouse_assets.drive.attempts import AttemptRecord, AttemptRecords
from lakehouse_assets.drive.chunk import Chunk, Proof, Proofs, Results
from lakehouse_assets.drive.running import RunningWorker, open_session
from lakehouse_assets.drive.verdicts import PendingChunk
from lakehouse_assets.drive.workers import Unconfirmed, Workers
from resources.launchers.base import Attempt, Handle, NotStarted


@dataclass
class Starter(Generic[Proof]):
    """Starts one run's workers, or finds them."""

    proofs: Proofs[Proof]
    records: AttemptRecords | None
    """The records of attempts; None where workers end with this process."""
    workers: Workers
    results: Results[Proof]

    def pending(self, chunks: Sequence[Chunk], first: Mapping[int, Attempt]) -> list[PendingChunk]:
        """Returns the chunks in the order in which to start them, each with the last record of an earlier process."""
        records = self.records.last(c.ordinal for c in chunks) if self.records else {}
        for ordinal, record in records.items():
            if record.launcher == self._launcher_name:
                attempt = replace(first[ordinal], number=record.number)
                self.workers.unconfirmed[ordinal] = Unconfirmed(attempt, record.id)
        pending = [PendingChunk(c, first[c.ordinal], records.get(c.ordinal)) for c in chunks]
        # Chunks whose worker may be running come first, so that the pool soon counts those workers.
        return sorted(pending, key=lambda p: p.record is None)

    def look_up(self, pending: PendingChunk) -> PendingChunk:
        """Returns the chunk with the recorded worker, if that still runs; otherwise with the attempt to make.

        The recorded worker        what happens
        runs, does the same work   it is taken over (``inherited``)
        runs, does other work      it is cancelled, and looked up again later
        not found, the same work   the same attempt again: its key prevents a second worker
        not found, other work      the next attempt
        has ended                  the next attempt
        another launcher's         the next attempt: this launcher can't find that worker

        Raises NotStarted while that can't be found out, and until a worker that does other work has ended.
        """
        if (record := pending.record) is None:
            return pending
        recorded = replace(pending.attempt, number=record.number)
        following = replace(pending, attempt=replace(recorded, number=record.number + 1), record=None)
        if record.launcher != self._launcher_name:
            return following
        launcher, same_work = self.workers.launcher, record.work == recorded.work
        known = Handle(record.id, asked=datetime.fromisoformat(record.at)) if record.id else None
        handle = known or launcher.find(recorded)
        if handle and handle.id not in launcher.poll([handle]):
            if same_work:
                handle = replace(handle, asked=None)  # it was seen: the service knows it
                return replace(pending, attempt=recorded, record=None, handle=handle, inherited=True)
            self.workers.cancel([handle])
            text = "the recorded worker runs other code, or other partitions, and is being ended"
            raise NotStarted(text, transient=True, unconfirmed=True)
        if handle is None and same_work:
            # There may be a worker that the service does not show yet. The same key starts no second one.
            return replace(pending, attempt=recorded, record=None, inherited=True)
        self.workers.unconfirmed.pop(pending.chunk.ordinal, None)
        return following

    def proof_arrived(self, pending: PendingChunk) -> bool:
        """Takes the proof of an earlier process's worker that has ended, if it left one while the chunk waited.

        Returns whether it did. Raises NotStarted while proofs can't be read.
        """
        if pending.handle:
            return False
        ordinal = pending.chunk.ordinal
        try:
            proof = self.proofs.find([ordinal]).get(ordinal)
        except OSError as error:
            text = f"it can't be read whether its work is done already: {error}"
            raise NotStarted(text, transient=True, unconfirmed=True) from error
        if proof is None:
            return False
        self.results.proofs[ordinal] = proof
        self.workers.unconfirmed.pop(ordinal, None)
        return True

    def start(self, pending: PendingChunk) -> None:
        """Opens a session for the chunk's worker, and starts the worker unless it runs already. Raises NotStarted."""
        ordinal, attempt, handle = pending.chunk.ordinal, pending.attempt, pending.handle
        launcher, run = self.workers.launcher, self.workers.run
        injector, reader = launcher.pipes(attempt)
        with ExitStack() as stack:
            session = stack.enter_context(open_session(run.context, injector, reader, attempt.payload))
            if handle is None:
                handle = self._submit(pending, session.get_bootstrap_env_vars())
            self.workers.running[handle.id] = RunningWorker(pending, handle, session, reader, stack.pop_all())
        self.workers.unconfirmed.pop(ordinal, None)
        try:
            self._record(attempt, handle.id)
        except OSError as error:  # the worker is found by its attempt's key as well
            run.log(logging.WARNING, f"chunk {ordinal}: its worker's id can't be recorded: {error}")
        self.results.links[ordinal] = link = launcher.link(handle)
        if not launcher.blocking:
            what = "found running" if pending.handle else "started"
            run.log(logging.INFO, f"chunk {ordinal} ({pending.chunk}): {link} {what}")

    def _submit(self, pending: PendingChunk, environment: Mapping[str, str]) -> Handle:
        try:
            self._record(pending.attempt)
        except OSError as error:
            # Nothing was submitted now, but an earlier try with this key may have started a worker: the key is kept.
            denied = isinstance(error, PermissionError) or "ACCESS_DENIED" in str(error)  # as PyArrow reports S3's
            text = f"its attempt can't be recorded: {error}"
            raise NotStarted(text, transient=not denied, unconfirmed=True) from error
        self.workers.unconfirmed[pending.chunk.ordinal] = Unconfirmed(pending.attempt)
        if self.workers.launcher.blocking:
            text = f"chunk {pending.chunk.ordinal} ({pending.chunk}): started in this run's own process"
            self.workers.run.log(logging.INFO, text)
        return self.workers.launcher.submit(pending.attempt, environment)

    def _record(self, attempt: Attempt, id: str | None = None) -> None:
        if self.records:
            at = datetime.now(UTC).isoformat()
            record = AttemptRecord(attempt.number, self._launcher_name, attempt.work, at, id)
            self.records.write(attempt.ordinal, record)

    @property
    def _launcher_name(self) -> str:
        return type(self.workers.launcher).__name__
