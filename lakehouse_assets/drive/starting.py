"""How a chunk gets its worker: the one that an earlier process started and that still runs, or a new one.
When a chunk is due and whether it has a slot is the loop's; what becomes of its worker is judging.py's."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Generic

from lakehouse_assets.drive.attempts import AttemptRecord, AttemptRecords
from lakehouse_assets.drive.chunk import Chunk
from lakehouse_assets.drive.ending import Ending
from lakehouse_assets.drive.proofs import Proof, Proofs
from lakehouse_assets.drive.results import Results
from lakehouse_assets.drive.running import RunningWorker, Unconfirmed, Workers, open_session
from lakehouse_assets.drive.this_run import ThisRun
from lakehouse_assets.drive.verdicts import PendingChunk
from resources.launchers.base import Attempt, Handle, Launcher, NotStarted


@dataclass
class Starter(Generic[Proof]):
    """Starts one run's workers, or finds them. records: None where the launcher's workers end with this process."""

    launcher: Launcher
    proofs: Proofs[Proof]
    records: AttemptRecords | None
    workers: Workers
    ending: Ending
    results: Results[Proof]
    run: ThisRun

    def unproven(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """The chunks whose proof is not there yet; those that are there become results. Raises as Proofs.find."""
        self.results.proofs.update(self.proofs.find([chunk.ordinal for chunk in chunks]))
        return [chunk for chunk in chunks if chunk.ordinal not in self.results.proofs]

    def pending(self, chunks: Sequence[Chunk], first: Mapping[int, Attempt]) -> list[PendingChunk]:
        """The chunks in the order in which to start them, each with what an earlier process recorded of it."""
        records = self.records.last(c.ordinal for c in chunks) if self.records else {}
        for ordinal, record in records.items():
            if record.launcher == self._launcher_name:
                attempt = replace(first[ordinal], number=record.number)
                self.workers.unconfirmed[ordinal] = Unconfirmed(attempt, record.id)
        pending = [PendingChunk(c, first[c.ordinal], records.get(c.ordinal)) for c in chunks]
        # Those that may run already come first: their workers hold no slot yet.
        return sorted(pending, key=lambda p: p.record is None)

    def start(self, pending: PendingChunk) -> bool:
        """Give the chunk its worker. False when none is needed, because its proof has arrived meanwhile.

        Raises NotStarted.
        """
        if pending.record:
            pending = self._looked_up(pending, pending.record)
            if pending.handle is None and self._proof_arrived(pending.chunk.ordinal):
                return False
        self._open(pending)
        return True

    def _looked_up(self, pending: PendingChunk, record: AttemptRecord) -> PendingChunk:
        """The chunk with the recorded worker, where it still runs, or else with the attempt to make.

        Raises NotStarted while that can't be found out, and until a worker of other work has ended.
        """
        recorded = replace(pending.attempt, number=record.number)
        following = replace(pending, attempt=replace(recorded, number=record.number + 1), record=None)
        if record.launcher != self._launcher_name:  # the setting was changed: this launcher can't find its worker
            return following
        known = Handle(record.id, asked=datetime.fromisoformat(record.at)) if record.id else None
        handle = known or self.launcher.find(recorded)
        same_work = record.work == recorded.work
        if handle and handle.id not in self.launcher.poll([handle]):
            if same_work:
                handle = replace(handle, asked=None)
                return replace(pending, attempt=recorded, record=None, handle=handle, inherited=True)
            self.ending.cancel([handle])
            text = "the recorded worker runs other code, or other partitions, and is being ended"
            raise NotStarted(text, transient=True, unconfirmed=True)
        if handle is None and same_work:
            # There may be a worker that the service does not show yet. The same key starts no second one.
            return replace(pending, attempt=recorded, record=None, inherited=True)
        self.workers.unconfirmed.pop(pending.chunk.ordinal, None)
        return following

    def _proof_arrived(self, ordinal: int) -> bool:
        """Take the proof that arrived while the chunk waited for its slot, if one did."""
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

    def _open(self, pending: PendingChunk) -> None:
        """Open a session and have a worker in it. Raises NotStarted."""
        ordinal, attempt, handle = pending.chunk.ordinal, pending.attempt, pending.handle
        injector, reader = self.launcher.pipes(attempt)
        with ExitStack() as stack:
            extras = {"work": attempt.payload}
            session = stack.enter_context(open_session(self.run.context, injector, reader, extras))
            if handle is None:
                handle = self._submit(pending, session.get_bootstrap_env_vars())
            self.workers.running[handle.id] = RunningWorker(pending, handle, session, reader, stack.pop_all())
        self.workers.unconfirmed.pop(ordinal, None)
        try:
            self._record(attempt, handle)
        except OSError as error:  # the worker is found by its attempt's key as well
            self.run.log(logging.WARNING, f"chunk {ordinal}: its worker's id can't be recorded: {error}")
        self.results.links[ordinal] = self.launcher.link(handle)
        if not self.launcher.blocking:
            what = "found running" if pending.handle else "started"
            self.run.log(logging.INFO, f"chunk {ordinal} ({pending.chunk}): {self.launcher.link(handle)} {what}")

    def _submit(self, pending: PendingChunk, environment: Mapping[str, str]) -> Handle:
        try:
            self._record(pending.attempt)
        except OSError as error:
            # No worker was asked for now, but an earlier try with this key may have started one: the key is kept.
            text = f"its attempt can't be recorded: {error}"
            raise NotStarted(text, transient=not _denied(error), unconfirmed=True) from error
        self.workers.unconfirmed[pending.chunk.ordinal] = Unconfirmed(pending.attempt)
        if self.launcher.blocking:
            text = f"chunk {pending.chunk.ordinal} ({pending.chunk}): started in this run's own process"
            self.run.log(logging.INFO, text)
        return self.launcher.submit(pending.attempt, environment)

    def _record(self, attempt: Attempt, handle: Handle | None = None) -> None:
        if self.records:
            now, id = datetime.now(UTC).isoformat(), handle.id if handle else None
            record = AttemptRecord(attempt.number, self._launcher_name, attempt.work, now, id)
            self.records.write(attempt.ordinal, record)

    @property
    def _launcher_name(self) -> str:
        return type(self.launcher).__name__


def _denied(error: OSError) -> bool:
    return isinstance(error, PermissionError) or "ACCESS_DENIED" in str(error)  # PyArrow's word for S3's
