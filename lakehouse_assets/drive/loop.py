"""The poll loop that starts, watches, retries and cancels a run's workers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import inf

from dagster._utils.interrupts import capture_interrupts

from lakehouse_assets.drive.chunks import (
    AttemptRecord,
    Chunk,
    Journal,
    PendingChunk,
    Results,
    Retry,
    WorkerFailure,
    after_end,
    after_refusal,
)
from lakehouse_assets.drive.liveness import Context, ThisRun
from lakehouse_assets.drive.slots import Claims, Slots
from lakehouse_assets.drive.workers import RunningWorker, Workers, open_session
from lakehouse_assets.environment.launchers.base import Attempt, Ended, Handle, Launcher, NotStarted, Patience
from lakehouse_assets.wire.receipts import Receipt

# The pause after each turn of the loop: a worker takes seconds, a turn microseconds.
TURN_SECONDS = 0.1
# How long receipts may be unreadable, in spite of the storage's own retries, before the run fails.
UNREADABLE_SECONDS = 300.0


@dataclass
class Drive:
    """The poll loop over one run's workers."""

    results: Results
    _journal: Journal
    _workers: Workers
    _claims: Claims
    _report: Callable[[Results], None]
    _unreadable: Patience = field(default_factory=lambda: Patience(UNREADABLE_SECONDS))
    _next_poll: float = 0.0

    def resume(self, chunks: Sequence[Chunk], first: Mapping[int, Attempt], done: Collection[int] = ()) -> list[Chunk]:
        """Returns the chunks that still need a worker; adds the others' receipts to the results.

        first: the first attempt at each chunk, by ordinal. done: ordinals of chunks that need no worker for another
        reason. Raises as Journal.find().
        """
        self.results.receipts.update(self._journal.find(first[chunk.ordinal] for chunk in chunks))
        left = [c for c in chunks if c.ordinal not in self.results.receipts and c.ordinal not in done]
        for chunk in set(chunks) - set(left):
            # An earlier process of this run may still hold the chunk's slot; Dagster frees it only at the run's end.
            self._workers.slots.free(chunk.ordinal)
        return left

    def run(self, chunks: Sequence[Chunk], first: Mapping[int, Attempt], *, keep_on: bool) -> None:
        """Drives the chunks until each has a receipt or a failure.

        first: as in resume(). keep_on: whether chunks still start after a failure. Running workers always finish: a
        retry can use their work.
        """
        # If chunks are staged again, an old worker that ends now would free the slot of its successor: both slots have
        # the chunk's name.
        self._workers.settle()
        pending = self._pending(chunks, first)
        while self._workers.running or pending:
            self._workers.run.raise_if_ended()
            if self.results.failures and not keep_on:
                for dropped in pending:
                    self._workers.slots.free(dropped.chunk.ordinal)  # else its place in the queue gets a slot
                pending.clear()
            self._start_due(pending)
            if self._is_due():
                pending += self._poll()
            self.results.running = len(self._workers.running)
            self.results.waiting = bool(pending) and self._claims.for_others
            self._report(self.results)
            if self._workers.running or pending:
                time.sleep(TURN_SECONDS)

    def settle(self) -> None:
        """Waits until the workers that have left a receipt end: only then is their usage known. Raises nothing."""
        self._workers.settle()

    def _start_due(self, pending: list[PendingChunk]) -> None:
        # Only the chunk that is due first claims, turn after turn: its claim waits in Dagster's queue, which grants a
        # slot to a claim that has waited.
        while pending and (due := min(pending, key=lambda p: p.due)).due <= time.monotonic():
            if not self._claims.claim(due.chunk):
                return
            pending.remove(due)
            try:
                found = self._look_up(due)
                # A recorded worker may have finished since resume() looked for receipts.
                is_done = due.record is not None and self._take_receipt(found)
                # Only now: if a look failed, a retry looks up the recorded worker again; if _start() fails, it doesn't.
                due = found
                if is_done:
                    self._workers.slots.free(due.chunk.ordinal)
                else:
                    self._start(due)
            except NotStarted as refused:
                self._workers.slots.free(due.chunk.ordinal)
                if not refused.unconfirmed:
                    self._workers.unconfirmed.pop(due.chunk.ordinal, None)
                pending += self._follow(after_refusal(due, refused, time.monotonic()))
            if self._is_due():
                return

    def _pending(self, chunks: Sequence[Chunk], first: Mapping[int, Attempt]) -> list[PendingChunk]:
        """Returns the chunks with what earlier processes recorded; their workers count as unconfirmed."""
        records = self._journal.last(c.ordinal for c in chunks) if self._workers.launcher.durable else {}
        for ordinal, record in records.items():
            if record.launcher == self._launcher_name:
                attempt = replace(first[ordinal], number=record.number)
                self._workers.unconfirmed[ordinal] = Handle(record.id) if record.id else attempt
        pending = [PendingChunk(c, first[c.ordinal], records.get(c.ordinal)) for c in chunks]
        # First the chunks whose worker may be running, so that the pool soon counts these workers.
        return sorted(pending, key=lambda p: p.record is None)

    def _look_up(self, pending: PendingChunk) -> PendingChunk:
        """Returns the chunk with an earlier process's worker if that still runs, else with the attempt to make.

        The recorded worker        what happens
        runs, same work            taken over (``inherited``)
        runs, other work           cancelled, looked up again later
        not found, same work       same attempt: its key prevents a second worker
        anything else              next attempt

        Raises NotStarted while the service can't be asked, and until a worker that does other work has ended.
        """
        if (record := pending.record) is None:
            return pending
        recorded = replace(pending.attempt, number=record.number)
        following = replace(pending, attempt=replace(recorded, number=record.number + 1), record=None)
        if record.launcher != self._launcher_name:
            return following
        launcher, same_work = self._workers.launcher, record.work == recorded.work
        known = Handle(record.id, asked=datetime.fromisoformat(record.at)) if record.id else None
        handle = known or launcher.find(recorded)
        if handle and handle.id not in launcher.poll([handle]):
            if same_work:
                handle = replace(handle, asked=None)  # the service knows it
                return replace(pending, attempt=recorded, record=None, handle=handle, inherited=True)
            self._workers.cancel([handle])
            text = "the recorded worker runs other code or other partitions and is being stopped"
            raise NotStarted(text, transient=True, unconfirmed=True)
        if handle is None and same_work:
            # The service may not show a worker yet. The same key starts no second one.
            return replace(pending, attempt=recorded, record=None, inherited=True)
        self._workers.unconfirmed.pop(pending.chunk.ordinal, None)
        return following

    def _take_receipt(self, pending: PendingChunk) -> bool:
        """Takes the receipt if it is there. Raises NotStarted while receipts can't be read."""
        if pending.handle:  # its worker still runs
            return False
        ordinal = pending.chunk.ordinal
        try:
            receipt = self._journal.find([pending.attempt]).get(ordinal)
        except OSError as error:
            text = f"can't read whether its work is already done: {error}"
            raise NotStarted(text, transient=True, unconfirmed=True) from error
        if receipt is None:
            return False
        self.results.receipts[ordinal] = receipt
        self._workers.unconfirmed.pop(ordinal, None)
        return True

    def _start(self, pending: PendingChunk) -> None:
        """Starts a worker, or takes over a running one. Raises NotStarted."""
        ordinal, attempt, handle = pending.chunk.ordinal, pending.attempt, pending.handle
        launcher, run = self._workers.launcher, self._workers.run
        injector, reader = launcher.pipes(attempt)
        with ExitStack() as stack:
            session = stack.enter_context(open_session(run.context, injector, reader, attempt.payload))
            if handle is None:
                handle = self._submit(pending, session.get_bootstrap_env_vars())
            self._workers.running[handle.id] = RunningWorker(pending, handle, session, reader, stack.pop_all())
        self._workers.unconfirmed.pop(ordinal, None)
        try:
            self._record(attempt, handle.id)
        except OSError as error:  # the attempt's key finds the worker as well
            run.log(logging.WARNING, f"chunk {ordinal}: its worker's id can't be recorded: {error}")
        self.results.links[ordinal] = link = launcher.link(handle)
        if not launcher.blocking:
            what = "found running" if pending.handle else "started"
            run.log(logging.INFO, f"chunk {ordinal} ({pending.chunk}): {link} {what}")

    def _submit(self, pending: PendingChunk, environment: Mapping[str, str]) -> Handle:
        """Records the attempt, then asks for its worker. Raises NotStarted."""
        try:
            self._record(pending.attempt)
        except OSError as error:
            # Keep the key: an earlier try with it may have started a worker.
            denied = isinstance(error, PermissionError) or "ACCESS_DENIED" in str(error)  # PyArrow's for S3
            text = f"its attempt can't be recorded: {error}"
            raise NotStarted(text, transient=not denied, unconfirmed=True) from error
        self._workers.unconfirmed[pending.chunk.ordinal] = pending.attempt
        if self._workers.launcher.blocking:
            text = f"chunk {pending.chunk.ordinal} ({pending.chunk}): started in this run's own process"
            self._workers.run.log(logging.INFO, text)
        return self._workers.launcher.submit(pending.attempt, environment)

    def _record(self, attempt: Attempt, id: str | None = None) -> None:
        if self._workers.launcher.durable:
            at = datetime.now(UTC).isoformat()
            record = AttemptRecord(attempt.number, self._launcher_name, attempt.work, at, id)
            self._journal.record(attempt.ordinal, record)

    @property
    def _launcher_name(self) -> str:
        return type(self._workers.launcher).__name__

    def _is_due(self) -> bool:
        return time.monotonic() >= self._next_poll

    def _poll(self) -> list[PendingChunk]:
        """Looks at all running workers once; returns the chunks to retry."""
        ended = self._workers.poll()
        retries: list[PendingChunk] = []
        readable = True
        for worker in tuple(self._workers.running.values()):
            self._set_deadline(worker)
            if (receipt := self._reported(worker)) is not None:
                self._let_end(worker, receipt)
            elif worker.handle.id in ended:
                # If one receipt can't be read, the others wait for the next poll: each try may take a minute.
                readable = readable and self._judge(worker, ended[worker.handle.id], retries)
            elif time.monotonic() > worker.deadline:
                self._cancel_overdue(worker)
        if readable:
            self._unreadable.succeeded()
        self._next_poll = time.monotonic() + self._workers.launcher.poll_seconds
        return retries

    def _reported(self, worker: RunningWorker) -> Receipt | None:
        """Returns the receipt in the worker's messages, if it is of this work."""
        parsed = (self._journal.parse(text, worker.pending.attempt) for text in worker.reported("receipt"))
        return next((receipt for receipt in parsed if receipt is not None), None)

    def _let_end(self, worker: RunningWorker, receipt: Receipt) -> None:
        """Takes the receipt of a worker that is about to end; the worker keeps its slot until it has ended."""
        self.results.receipts[worker.chunk.ordinal] = receipt
        del self._workers.running[worker.handle.id]
        worker.deadline = time.monotonic() + self._workers.ending_seconds()
        self._workers.ending.append(worker)

    def _judge(self, worker: RunningWorker, ended: Ended, retries: list[PendingChunk]) -> bool:
        """Judges an ended worker by its durable receipt; without one, by its service's reason and what it reported.

        Returns False while receipts can't be read; raises OSError after UNREADABLE_SECONDS.
        """
        ordinal = worker.chunk.ordinal
        try:
            receipt = self._journal.find([worker.pending.attempt]).get(ordinal)
        except OSError as error:
            if self._unreadable.failed(time.monotonic()):
                raise
            text = f"chunk {ordinal}: its worker ended, but its receipt can't be read yet: {error}"
            self._workers.run.log(logging.WARNING, text)
            return False
        del self._workers.running[worker.handle.id]
        self._workers.close(worker)
        if receipt is not None:
            self.results.receipts[ordinal] = receipt
        else:
            # If this run cancelled the worker, the service's reason would blame somebody else.
            verdict = after_end(worker.pending, worker.overdue or ended, worker.reported_failure())
            retries += self._follow(verdict, worker)
        return True

    def _follow(self, verdict: Retry | WorkerFailure, worker: RunningWorker | None = None) -> list[PendingChunk]:
        """Logs a verdict; returns the chunk to retry, or adds the failure to the results."""
        if isinstance(verdict, WorkerFailure):
            failure = replace(verdict, log=self._workers.launcher.tail(worker.handle) if worker else "")
            text = "\n".join(part for part in (failure.message, failure.traceback, failure.log) if part)
            self._workers.run.log(logging.ERROR, f"chunk {failure.chunk.ordinal} ({failure.chunk}): {text}")
            self.results.failures.append(failure)
            return []
        chunk = verdict.pending.chunk
        text = f"chunk {chunk.ordinal} ({chunk}): the worker {verdict.reason}; trying again in {verdict.wait:.0f} s"
        self._workers.run.log(logging.WARNING, text)
        return [replace(verdict.pending, due=time.monotonic() + verdict.wait)]

    def _set_deadline(self, worker: RunningWorker) -> None:
        """Sets the deadline once the worker has begun: the wait for a machine does not count."""
        limit, began = worker.pending.attempt.timeout, self._workers.launcher.began(worker.handle)
        if worker.deadline < inf or limit is None or began is None:
            return
        left = began + limit - datetime.now(UTC)
        worker.deadline = time.monotonic() + left.total_seconds()

    def _cancel_overdue(self, worker: RunningWorker) -> None:
        """Cancels a worker whose time is up. It is judged after its end: until then it has its slot and costs money."""
        if self._workers.cancel([worker.handle]):
            limit = worker.pending.attempt.timeout
            worker.overdue = Ended(f"was still running after {limit} (worker_timeout) and was stopped")
            worker.deadline = time.monotonic() + self._workers.ending_seconds()


@contextmanager
def driving(
    context: Context,
    launcher: Launcher,
    journal: Journal,
    report: Callable[[Results], None],
    results: Results | None = None,
) -> Iterator[Drive]:
    """Yields the poll loop that drives workers for an op or an asset.

    Leaving it waits for workers that are ending, and raises nothing; an exception cancels all workers, unless Dagster
    resumes the run in another process, which takes them over. journal: where attempts are recorded, if the launcher's
    workers outlive this process. report: called at each turn. results: earlier ones to add to.
    """
    run = ThisRun(context)
    slots = Slots(context.instance, run.id, context.get_step_execution_context().step.key)
    results = Results() if results is None else results
    workers = Workers(launcher, slots, run, results.usages)
    interruption: BaseException | None = None
    try:
        try:
            yield Drive(results, journal, workers, Claims(slots, run), report)
        except BaseException as error:
            interruption = error
            raise
        workers.settle()
    finally:  # also when *Terminate* arrives while it settles
        # Holds signals back: one may follow the status that ended the run, or another error.
        with capture_interrupts():
            workers.stop_reading()
            if interruption and launcher.durable and run.resumes_after(interruption):
                text = (
                    "this process ends; its workers keep running, and the process that resumes the run takes them over"
                )
                run.log(logging.INFO, text)
            else:
                try:
                    workers.cancel_all()
                except Exception as error:  # must not hide the interruption
                    run.log(logging.ERROR, f"workers may still be running and cost money: {error}")
