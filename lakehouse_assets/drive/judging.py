"""Looks at the running workers: which has a proof, which ended without one, which has run for too long.

What follows from an end is decided in verdicts.py; workers are ended by workers.py.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import inf
from typing import Generic

from lakehouse_assets.drive.chunk import Proof, Proofs, Results, WorkerFailure
from lakehouse_assets.drive.running import RunningWorker
from lakehouse_assets.drive.verdicts import PendingChunk, Retry, after_end, after_refusal
from lakehouse_assets.drive.workers import Workers
from resources.launchers.base import Ended, NotStarted
from resources.patience import Patience

# How long proofs may be unreadable, beyond the storage's own retries, before a run fails.
UNREADABLE_SECONDS = 300.0


@dataclass
class Judge(Generic[Proof]):
    """Judges one run's workers: fills the results' proofs and failures."""

    proofs: Proofs[Proof]
    workers: Workers
    results: Results[Proof]
    _unreadable: Patience = field(default_factory=lambda: Patience(UNREADABLE_SECONDS))
    _next_poll: float = 0.0

    def is_due(self) -> bool:
        """Says whether it is time to look at the workers: asking their service costs calls."""
        return time.monotonic() >= self._next_poll

    def poll(self) -> list[PendingChunk]:
        """Looks at all workers once. Returns the chunks to try again."""
        ended = self.workers.poll()
        retries: list[PendingChunk] = []
        readable = True
        for worker in map(self._with_deadline, tuple(self.workers.running.values())):
            if (proof := self._reported(worker)) is not None:
                self._let_end(worker, proof)
            elif worker.handle.id in ended:
                # After one failure the others wait for the next poll: each try may take a minute.
                readable = readable and self._judge(worker, ended[worker.handle.id], retries)
            elif time.monotonic() > worker.deadline:
                self._cancel_overdue(worker)
        if readable:
            self._unreadable.succeeded()
        self._next_poll = time.monotonic() + self.workers.launcher.poll_seconds
        return retries

    def refused(self, pending: PendingChunk, refused: NotStarted) -> list[PendingChunk]:
        """Returns the chunk to try again after its worker was not started, or none."""
        return self._follow(after_refusal(pending, refused, time.monotonic()))

    def _reported(self, worker: RunningWorker) -> Proof | None:
        parsed = (self.proofs.parse(proof, worker.pending.attempt) for proof in worker.reported("proof"))
        return next((proof for proof in parsed if proof is not None), None)

    def _let_end(self, worker: RunningWorker, proof: Proof) -> None:
        """Takes the proof. The worker ends by itself while the run goes on, and keeps its slot until then."""
        self.results.proofs[worker.chunk.ordinal] = proof
        del self.workers.running[worker.handle.id]
        self.workers.ending.append(replace(worker, deadline=time.monotonic() + self.workers.ending_seconds()))

    def _judge(self, worker: RunningWorker, ended: Ended, retries: list[PendingChunk]) -> bool:
        """Judges a worker that ended without reporting a proof.

        A durable proof decides, then its service's reason and the failure that it reported. Returns False, and does
        nothing, while proofs can't be read; raises OSError once that has lasted too long.
        """
        ordinal = worker.chunk.ordinal
        try:
            proof = self.proofs.find([ordinal]).get(ordinal)
        except OSError as error:
            if self._unreadable.failed(time.monotonic()):
                raise
            text = f"chunk {ordinal}: its worker ended, but it can't be read yet whether its work is done: {error}"
            self.workers.run.log(logging.WARNING, text)
            return False
        del self.workers.running[worker.handle.id]
        self.workers.close(worker)
        if proof is not None:
            self.results.proofs[ordinal] = proof
        else:
            # If this run cancelled the worker itself, its service's reason would blame somebody else.
            verdict = after_end(worker.pending, worker.overdue or ended, worker.reported_failure())
            retries += self._follow(verdict, worker)
        return True

    def _follow(self, verdict: Retry | WorkerFailure, worker: RunningWorker | None = None) -> list[PendingChunk]:
        """Returns the chunk to try again, or none: then the failure is noted, with the end of its worker's log."""
        if isinstance(verdict, WorkerFailure):
            failure = replace(verdict, log=self.workers.launcher.tail(worker.handle) if worker else "")
            text = "\n".join(part for part in (failure.message, failure.traceback, failure.log) if part)
            self.workers.run.log(logging.ERROR, f"chunk {failure.chunk.ordinal} ({failure.chunk}): {text}")
            self.results.failures.append(failure)
            return []
        chunk = verdict.pending.chunk
        text = f"chunk {chunk.ordinal} ({chunk}): the worker {verdict.reason}; tried again in {verdict.wait:.0f} s"
        self.workers.run.log(logging.WARNING, text)
        return [replace(verdict.pending, due=time.monotonic() + verdict.wait)]

    def _with_deadline(self, worker: RunningWorker) -> RunningWorker:
        """Gives the worker its deadline, as soon as it has begun: the time it waits for a machine does not count."""
        limit, began = worker.pending.attempt.timeout, self.workers.launcher.began(worker.handle)
        if worker.deadline < inf or limit is None or began is None:
            return worker
        left = began + limit - datetime.now(UTC)
        worker = replace(worker, deadline=time.monotonic() + left.total_seconds())
        self.workers.running[worker.handle.id] = worker
        return worker

    def _cancel_overdue(self, worker: RunningWorker) -> None:
        """Cancels a worker whose time is up.

        It is judged when its service says that it ended: until then its slot is taken and its bill grows.
        """
        if self.workers.cancel([worker.handle]):
            limit = worker.pending.attempt.timeout
            overdue = Ended(f"was still running after {limit} (worker_timeout), was ended")
            deadline = time.monotonic() + self.workers.ending_seconds()
            self.workers.running[worker.handle.id] = replace(worker, overdue=overdue, deadline=deadline)
