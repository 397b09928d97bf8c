"""The poll loop that drives one run's workers: claim a slot, start or find, poll, take the proof; one thread for all.

It drives any kind of work that leaves a proof. Where workers run is the launcher's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic

from dagster._utils.interrupts import capture_interrupts

from lakehouse_assets.drive.attempts import AttemptRecords
from lakehouse_assets.drive.chunk import Chunk, Proof, Proofs, Results
from lakehouse_assets.drive.claims import Claims
from lakehouse_assets.drive.judging import Judge
from lakehouse_assets.drive.process_tag import process_tag
from lakehouse_assets.drive.slots import Slots
from lakehouse_assets.drive.starting import Starter
from lakehouse_assets.drive.this_run import Context, ThisRun
from lakehouse_assets.drive.verdicts import PendingChunk
from lakehouse_assets.drive.workers import Workers
from resources.launchers.base import Attempt, Launcher, NotStarted

# Short compared with a worker's seconds, long compared with a turn's microseconds.
TURN_SECONDS = 0.1


@dataclass
class Drive(Generic[Proof]):
    """The poll loop over one run's workers."""

    results: Results[Proof]
    """What the workers have done so far."""
    _workers: Workers
    _claims: Claims
    _starter: Starter[Proof]
    _judge: Judge[Proof]
    _report: Callable[[Results[Proof]], None]

    def resume(self, chunks: Sequence[Chunk], done: Collection[int] = ()) -> list[Chunk]:
        """Returns the chunks that still need a worker. The durable proofs of the others become results.

        done: ordinals of chunks that need no worker for another reason. Raises as Proofs.find.
        """
        self.results.proofs.update(self._starter.proofs.find([chunk.ordinal for chunk in chunks]))
        left = [c for c in chunks if c.ordinal not in self.results.proofs and c.ordinal not in done]
        for chunk in set(chunks) - set(left):
            # An earlier process of this very run may hold its slot; Dagster frees such slots only at the run's end.
            self._workers.slots.free(chunk.ordinal)
        return left

    def run(self, chunks: Sequence[Chunk], first: Mapping[int, Attempt], *, keep_on: bool) -> None:
        """Drives the chunks until each has a proof or a failure in the results.

        first: the first attempt at each chunk, by ordinal. keep_on: whether further chunks start after a failure. If
        not, the running workers still go on: a retry need not do again what they prove.
        """
        pending = self._starter.pending(chunks, first)
        while self._workers.running or pending:
            self._workers.run.raise_if_ended()
            if self.results.failures and not keep_on:
                for dropped in pending:
                    self._workers.slots.free(dropped.chunk.ordinal)  # or its place in the queue would be given a slot
                pending.clear()
            self._start_due(pending)
            if self._judge.is_due():
                pending += self._judge.poll()
            self.results.running = len(self._workers.running)
            self.results.waiting = bool(pending) and self._claims.wait.for_others
            self._report(self.results)
            if self._workers.running or pending:
                time.sleep(TURN_SECONDS)

    def settle(self) -> None:
        """Waits until the workers whose proof was found have ended, so that their usage is known. Raises nothing."""
        self._workers.settle()

    def _start_due(self, pending: list[PendingChunk]) -> None:
        """Starts what is due while there are slots, and until it is time to look at the running workers."""
        # The chunk that was due first is the one to go on claiming: a slot is given to the claim that has waited.
        while pending and (due := min(pending, key=lambda p: p.due)).due <= time.monotonic():
            if not self._claims.claim(due.chunk):
                return
            pending.remove(due)
            try:
                # Looked up here, so that a refusal of what follows does not begin with the recorded attempt again.
                looked_up = bool(due.record)
                due = self._starter.look_up(due)
                if looked_up and self._starter.proof_arrived(due):
                    self._workers.slots.free(due.chunk.ordinal)
                else:
                    self._starter.start(due)
            except NotStarted as refused:
                self._workers.slots.free(due.chunk.ordinal)
                if not refused.unconfirmed:
                    self._workers.unconfirmed.pop(due.chunk.ordinal, None)
                pending += self._judge.refused(due, refused)
            if self._judge.is_due():
                return


@contextmanager
def driving(
    context: Context,
    launcher: Launcher,
    proofs: Proofs[Proof],
    records: AttemptRecords,
    report: Callable[[Results[Proof]], None],
) -> Iterator[Drive[Proof]]:
    """Yields the poll loop that drives workers for an op or an asset.

    Leaving the context waits for the workers that are ending, and raises nothing; an exception cancels all of them.
    Only if this process is ended and Dagster resumes the run in another one, they are left to that process.

    records: used where the launcher's workers outlive this process. report: called with the results at each turn.
    """
    run = ThisRun(context)
    context.instance.add_run_tags(run.id, process_tag())
    slots = Slots(context.instance, run.id, context.get_step_execution_context().step.key)
    results = Results[Proof]()
    workers = Workers(launcher, slots, run, results.usages)
    starter = Starter(proofs, records if launcher.durable else None, workers, results)
    interruption: BaseException | None = None
    try:
        try:
            yield Drive(results, workers, Claims(slots, run), starter, Judge(proofs, workers, results), report)
        except BaseException as error:
            interruption = error
            raise
        workers.settle()
    finally:  # also when *Terminate* arrives while it settles
        # No signal may interrupt this: one may follow the status that ended the run, or another error.
        with capture_interrupts():
            workers.stop_reading()
            if interruption and launcher.durable and run.resumes_after(interruption):
                text = "this process ends; its workers run on, and the process that resumes the run takes over"
                run.log(logging.INFO, text)
            else:
                try:
                    workers.cancel_all()
                except Exception as error:
                    if interruption:
                        raise
                    run.log(logging.ERROR, f"all is done, but workers may still run, which costs: {error}")
