"""The poll loop that drives one run's workers: claim a slot, start or find, poll, take the receipt; one thread for all.
Where workers run is the launcher's; who is tried again is verdicts.py's, what was staged audit.py's to judge."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from math import inf

import dagster as dg
from dagster._core.events import DagsterEvent, EngineEventData
from dagster._utils.interrupts import capture_interrupts

from lakehouse_assets.drive.attempts import Attempts, Made
from lakehouse_assets.drive.results import Staging, WorkerFailure
from lakehouse_assets.drive.running import Running, open_session
from lakehouse_assets.drive.slot_wait import SlotWait, sentence
from lakehouse_assets.drive.slots import Slots
from lakehouse_assets.drive.verdicts import Again, Waiting, after_end, after_refusal
from lakehouse_assets.protocol.receipts import Receipt
from lakehouse_assets.run.plan import Chunk
from resources.launchers.base import Attempt, Ended, Handle, Launcher, NotStarted

logger = logging.getLogger(__name__)

# Short against a worker's seconds, long against a poll's microseconds.
TICK_SECONDS = 0.1
# A JVM that has nothing left to do ends in a second or two; one that hangs then is ended, it keeps a slot. A remote
# service takes longer to notice.
ENDING_SECONDS = 10.0
ENDING_POLLS = 12
# How long receipts may be unreadable, beyond the storage's own patience, before a run gives up watching.
UNREAD_SECONDS = 300.0
# How long slots may be out of reach: a database that fails over is back in a minute or two.
UNASKED_SECONDS = 300.0
INTERRUPTED = (dg.DagsterExecutionInterruptedError, KeyboardInterrupt)
# FAILURE: Dagster took this process for dead; who re-executes the run from failure makes the attempts again.
TERMINATED = (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.FAILURE)
# A few milliseconds each on SQLite.
TERMINATED_SECONDS = 2.0
# What workers elsewhere said is a round trip for each; botocore keeps as many connections.
READERS = 10


class Drive:
    """One run's workers, as a context: leaving it waits for those that are ending, an exception cancels them all.

    Unless the run's own task is taken away and the run goes on in another: its workers are left to that one.
    """

    def __init__(
        self,
        context: dg.AssetExecutionContext,
        launcher: Launcher,
        slots: Slots,
        find_receipts: Callable[[Iterable[int]], Mapping[int, Receipt]],
        report: Callable[[Staging], None],
        attempts: Attempts | None = None,
    ) -> None:
        """find_receipts: those of the chunks asked for (ordinals). attempts: needed where the launcher is durable."""
        self._context = context
        self._launcher = launcher
        self._slots = slots
        self._find_receipts = find_receipts
        self._report = report
        self._attempts = attempts if launcher.durable else None
        self._running: dict[str, Running] = {}
        self._ending: list[Running] = []
        # Attempts whose workers may run though they are in none of the others, by chunk, with the id where it is known.
        self._perhaps: dict[int, tuple[Attempt, str | None]] = {}
        self._next_poll = 0.0
        self._next_asked = 0.0
        self._unread_since: float | None = None
        self._unasked_since: float | None = None
        self._slot_wait = SlotWait()
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="messages")
        self._staging = Staging()

    def __enter__(self) -> Drive:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.settle()
        finally:  # also when *Terminate* arrives while waiting
            # No signal may end this half-way: *Terminate*'s may come behind its status, or behind another error.
            with capture_interrupts():
                self._leave(kind)

    def _leave(self, kind: type[BaseException] | None) -> None:
        self._readers.shutdown(wait=False, cancel_futures=True)
        if kind and self._goes_on_elsewhere(kind):
            self._tell(
                logging.INFO, "this process ends; the run's workers go on, the process that resumes it takes over"
            )
        else:
            self._cancel()

    def _goes_on_elsewhere(self, kind: type[BaseException]) -> bool:
        """Whether the interruption is not *Terminate* but the end of this process's host (Spot, a task's retirement),
        behind which Dagster resumes the run."""
        if not (self._launcher.durable and issubclass(kind, INTERRUPTED)):
            return False
        return not self._terminated() and self._context.instance.run_will_resume(self._context.run.run_id)

    def _terminated(self) -> bool:
        run = self._context.instance.get_run_by_id(self._context.run.run_id)
        return run is None or run.status in TERMINATED

    def settle(self) -> None:
        """Wait for the workers that have left their receipt to end: their usage is known then, their slots are free.

        Raises nothing and waits no longer than a cancelled worker takes: what they staged may be public already.
        """
        until = time.monotonic() + 2 * self._patience()
        try:
            while self._ending and time.monotonic() < until:
                self._reap(self._launcher.poll([w.handle for w in self._ending]))
                if self._ending:
                    time.sleep(self._launcher.poll_seconds)
        except Exception as error:
            self._tell(logging.WARNING, f"whether the workers have ended can't be asked: {error}")
        if self._ending:
            left, self._ending = self._ending, []
            self._told_to_end([worker.handle for worker in left])
            for worker in left:
                self._slots.free(worker.chunk.ordinal)
                self._close_session(worker)
            links = ", ".join(self._launcher.link(worker.handle) for worker in left)
            self._tell(logging.WARNING, f"these workers left their receipts, but have not ended; see to them: {links}")

    def run(self, chunks: Sequence[Chunk], first: Mapping[int, Attempt], staging: Staging, keep_on: bool) -> None:
        """Drive all chunks to a receipt or a failure; fills ``staging``.

        first: the first attempt at each chunk, by ordinal. keep_on: submit further chunks behind a failure. Without it
        nothing more starts, and workers that run go on: their receipts spare a retry the work.
        """
        self._staging = staging
        made = self._attempts.last(c.ordinal for c in chunks) if self._attempts else {}
        waiting = deque(Waiting(c, first[c.ordinal], made.get(c.ordinal)) for c in chunks)
        self._perhaps = {
            n: (replace(first[n], number=m.number), m.id)
            for n, m in made.items()
            if m.launcher == type(self._launcher).__name__
        }
        # Those that may be running already first: they hold no slot yet.
        waiting = deque(sorted(waiting, key=lambda w: w.made is None))
        while self._running or waiting:
            self._heed_termination()
            if waiting and staging.failures and not keep_on:
                for left in waiting:
                    self._slots.free(left.chunk.ordinal)  # or its place in the queue, which would be given a slot
                waiting.clear()
            self._start_due(waiting)
            if time.monotonic() >= self._next_poll:
                waiting += self._poll()
                self._next_poll = time.monotonic() + self._launcher.poll_seconds
            staging.running, staging.waiting = len(self._running), bool(waiting) and self._slot_wait.told
            self._report(staging)
            if self._running or waiting:
                time.sleep(TICK_SECONDS)

    def _heed_termination(self) -> None:
        """Raise what *Terminate* raises where its signal was lost: Python drops an exception that a signal's handler
        raises inside a destructor or a weak reference's callback, and a run forced to *canceled* may get no signal."""
        if time.monotonic() < self._next_asked:
            return
        self._next_asked = time.monotonic() + TERMINATED_SECONDS
        try:
            terminated = self._terminated()
        except Exception as error:  # each kind of storage has its own
            logger.warning("whether the run is terminated can't be asked, its workers go on: %r", error)
            return
        if terminated:
            raise dg.DagsterExecutionInterruptedError

    # start

    def _start_due(self, waiting: deque[Waiting]) -> None:
        """Start what is due while there are slots, and until it is time to look at those that run."""
        # Whoever was due first goes on asking: the slot is given to the one that asked before.
        while waiting and (due := min(waiting, key=lambda w: w.due)).due <= time.monotonic():
            if not self._claimed(due.chunk):
                return
            waiting.remove(due)
            try:
                if due.made:
                    due = self._resolved(due, due.made)
                    if due.handle is None and self._came_meanwhile(due.chunk.ordinal):
                        continue
                self._start(due)
            except NotStarted as refused:
                self._slots.free(due.chunk.ordinal)
                if not refused.unheard:
                    self._perhaps.pop(due.chunk.ordinal, None)
                waiting += self._go_on(after_refusal(due, refused, time.monotonic()))
            if time.monotonic() >= self._next_poll:
                return

    def _claimed(self, chunk: Chunk) -> bool:
        """Whether the chunk has its slot; it has none while the instance can't be asked, for UNASKED_SECONDS."""
        try:
            claimed = self._slots.claim(chunk.ordinal)
        except Exception as error:  # each kind of storage has its own
            self._unasked_since = self._unasked_since or time.monotonic()
            if time.monotonic() - self._unasked_since > UNASKED_SECONDS:
                raise
            logger.warning("chunk %d: a slot can't be asked for, workers go on: %r", chunk.ordinal, error)
            return False
        self._unasked_since = None
        if not claimed:
            if self._slot_wait.refused(chunk.ordinal, time.monotonic()):
                self._tell_wait(chunk)
        elif (waited := self._slot_wait.claimed(chunk.ordinal, time.monotonic())) is not None:
            self._tell(logging.INFO, f"chunk {chunk.ordinal} ({chunk}) has its slot, after {waited:.0f} s")
        return claimed

    def _tell_wait(self, chunk: Chunk) -> None:
        """Say who holds the slots, as an event of the engine's, as Dagster says it of its own ops: a run is a link
        there."""
        run_id = self._context.run.run_id
        try:
            queue = self._slots.queue(chunk.ordinal)
            if self._slot_wait.worth_saying(own=queue.only(run_id)):
                waited = self._slot_wait.seconds(time.monotonic())
                said = sentence(queue, run_id, f"chunk {chunk.ordinal} ({chunk})", waited)
                DagsterEvent.engine_event(
                    self._context.get_step_execution_context(), said, EngineEventData(queue.metadata())
                )
        except Exception as error:  # each kind of storage has its own
            logger.warning("chunk %d waits for a slot; who holds them can't be asked or told: %r", chunk.ordinal, error)

    def _start(self, waiting: Waiting) -> None:
        ordinal, attempt, handle = waiting.chunk.ordinal, waiting.attempt, waiting.handle
        injector, reader = self._launcher.pipes(attempt)
        with ExitStack() as stack:
            extras = {"work": attempt.payload}
            session = stack.enter_context(open_session(self._context, injector, reader, extras))
            if handle is None:
                try:
                    self._note(attempt)
                except OSError as error:
                    # Nobody was asked for it; by the same key, as an earlier try may have been heard.
                    told = f"its attempt can't be noted: {error}"
                    raise NotStarted(told, transient=not _denied(error), unheard=True) from error
                self._perhaps[ordinal] = (attempt, None)
                if self._launcher.blocking:
                    self._tell(logging.INFO, f"chunk {ordinal} ({waiting.chunk}): started in this run's own process")
                handle = self._launcher.submit(attempt, session.get_bootstrap_env_vars())
            self._running[handle.id] = Running(waiting, handle, session, reader, stack.pop_all())
        self._perhaps.pop(ordinal, None)
        try:
            self._note(attempt, handle)
        except OSError as error:  # it is found by its key as well
            self._tell(logging.WARNING, f"chunk {ordinal}: its worker's id can't be noted: {error}")
        self._staging.links[ordinal] = self._launcher.link(handle)
        if not self._launcher.blocking:
            what = "found running from before" if waiting.handle else "started"
            self._tell(logging.INFO, f"chunk {ordinal} ({waiting.chunk}): {self._launcher.link(handle)} {what}")

    def _resolved(self, waiting: Waiting, made: Made) -> Waiting:
        """The chunk with the worker that an earlier process started and that still runs, or with the attempt to make.

        Raises NotStarted while that can't be told, and until a worker has ended whose receipt would be of no use.
        """
        attempt = replace(waiting.attempt, number=made.number)
        further = replace(waiting, attempt=replace(attempt, number=made.number + 1), made=None)
        if made.launcher != type(self._launcher).__name__:  # the setting was changed: its workers are another's
            return further
        noted = Handle(made.id, asked=datetime.fromisoformat(made.at)) if made.id else None
        handle = noted or self._launcher.find(attempt)
        same = made.work == attempt.work
        if handle and handle.id not in self._launcher.poll([handle]):
            if same:
                return replace(waiting, attempt=attempt, made=None, handle=replace(handle, asked=None), of_before=True)
            self._told_to_end([handle])
            raise NotStarted(
                "its worker by other code or of other partitions is being ended", transient=True, unheard=True
            )
        if handle is None and same:
            # Its key is the same: should there be one after all, no second one starts.
            return replace(waiting, attempt=attempt, made=None, of_before=True)
        self._perhaps.pop(waiting.chunk.ordinal, None)
        return further

    def _came_meanwhile(self, ordinal: int) -> bool:
        """Take the receipt that came while the chunk waited for its slot, if one did."""
        try:
            receipt = self._find_receipts([ordinal]).get(ordinal)
        except OSError as error:
            told = f"whether its receipt is there can't be read: {error}"
            raise NotStarted(told, transient=True, unheard=True) from error
        if receipt is None:
            return False
        self._staging.receipts[ordinal] = receipt
        self._perhaps.pop(ordinal, None)
        self._slots.free(ordinal)
        return True

    def _note(self, attempt: Attempt, handle: Handle | None = None) -> None:
        if self._attempts:
            id = handle.id if handle else None
            now = datetime.now(UTC).isoformat()
            made = Made(attempt.number, type(self._launcher).__name__, attempt.work, now, id)
            self._attempts.note(attempt.ordinal, made)

    # poll

    def _poll(self) -> list[Waiting]:
        """Look at all workers; returns the attempts to make again."""
        ended = self._launcher.poll([w.handle for w in (*self._running.values(), *self._ending)])
        self._reap(ended)
        self._read()
        again: list[Waiting] = []
        readable = True
        for worker in map(self._timed, tuple(self._running.values())):
            if receipt := worker.receipt():
                # Its work is durable; the process ends by itself while the run goes on, and keeps its slot till then.
                self._staging.receipts[worker.chunk.ordinal] = receipt
                del self._running[worker.handle.id]
                self._ending.append(replace(worker, deadline=time.monotonic() + self._patience()))
            elif worker.handle.id in ended:
                if readable and (judged := self._judge(worker, ended[worker.handle.id])) is not None:
                    again += judged
                else:
                    readable = False  # one try a poll: it may take a minute
            elif time.monotonic() > worker.deadline:
                if not self._told_to_end([worker.handle]):
                    continue
                limit = worker.waited.attempt.timeout
                overdue = Ended(f"was still running after {limit} (worker_timeout), was ended")
                # Its slot and its bill are open until its service says that it is gone.
                deadline = time.monotonic() + self._patience()
                self._running[worker.handle.id] = replace(worker, overdue=overdue, deadline=deadline)
        if readable:
            self._unread_since = None
        return again

    def _read(self) -> None:
        workers = list(self._running.values())
        if self._launcher.durable:
            list(self._readers.map(Running.hear, workers))
        else:
            for worker in workers:
                worker.hear()

    def _timed(self, worker: Running) -> Running:
        """The worker with its deadline, as soon as it has begun: waiting for a machine is not its own time."""
        limit, began = worker.waited.attempt.timeout, self._launcher.began(worker.handle)
        if worker.deadline < inf or limit is None or began is None:
            return worker
        left = began + limit - datetime.now(UTC)
        timed = self._running[worker.handle.id] = replace(worker, deadline=time.monotonic() + left.total_seconds())
        return timed

    def _patience(self) -> float:
        return max(ENDING_SECONDS, ENDING_POLLS * self._launcher.poll_seconds)

    def _judge(self, worker: Running, ended: Ended) -> list[Waiting] | None:
        """A worker that ended without reporting a receipt: the durable one decides, then what its service says, then
        what it said itself. Returns the attempts to make again; None, and leaves it, while receipts can't be read."""
        ordinal = worker.chunk.ordinal
        try:
            receipt = self._find_receipts([ordinal]).get(ordinal)
        except OSError as error:
            self._unread_since = self._unread_since or time.monotonic()
            if time.monotonic() - self._unread_since > UNREAD_SECONDS:
                raise
            self._tell(logging.WARNING, f"chunk {ordinal}: whether its receipt is there can't be read yet: {error}")
            return None
        del self._running[worker.handle.id]
        self._close(worker)
        if receipt:
            self._staging.receipts[ordinal] = receipt
            return []
        # Of one that is overdue the end was this run's wish.
        return self._go_on(after_end(worker.waited, worker.overdue or ended, worker.failure()), worker)

    def _go_on(self, verdict: Again | WorkerFailure, worker: Running | None = None) -> list[Waiting]:
        """The attempt to make again, or none, and the failure noted with the end of its worker's log."""
        if isinstance(verdict, WorkerFailure):
            log = self._launcher.tail(worker.handle) if worker else ""
            self._fail(replace(verdict, log=log))
            return []
        chunk = verdict.waiting.chunk
        self._tell(
            logging.WARNING,
            f"chunk {chunk.ordinal} ({chunk}): the worker {verdict.reason}; tried again in {verdict.wait:.0f} s",
        )
        return [replace(verdict.waiting, due=time.monotonic() + verdict.wait)]

    def _fail(self, failure: WorkerFailure) -> None:
        told = "\n".join(part for part in (failure.message, failure.traceback, failure.log) if part)
        self._tell(logging.ERROR, f"chunk {failure.chunk.ordinal} ({failure.chunk}): {told}")
        self._staging.failures.append(failure)

    # end

    def _reap(self, ended: Mapping[str, Ended]) -> None:
        for worker in [w for w in self._ending if w.handle.id in ended]:
            self._ending.remove(worker)
            self._close(worker)
        if overdue := [w.handle for w in self._ending if time.monotonic() > w.deadline]:
            self._told_to_end(overdue)

    def _told_to_end(self, handles: Sequence[Handle]) -> bool:
        """Whether the workers were cancelled; if not, that is asked again at the next poll, and the run goes on."""
        try:
            self._launcher.cancel(handles)
        except Exception as error:
            self._tell(logging.WARNING, f"workers that should end could not be cancelled yet: {error}")
            return False
        return True

    def _close(self, worker: Running) -> None:
        self._close_session(worker)
        self._slots.free(worker.chunk.ordinal)
        if usage := self._launcher.usage(worker.handle):
            self._staging.usages.append(usage)

    def _cancel(self) -> None:
        left = [*self._running.values(), *self._ending]
        self._running.clear()
        self._ending.clear()
        perhaps = list(self._perhaps.values())
        self._perhaps.clear()
        try:
            self._launcher.cancel([*(worker.handle for worker in left), *(Handle(id) for _, id in perhaps if id)])
        finally:
            for attempt in (attempt for attempt, id in perhaps if not id):
                self._cancel_unheard(attempt)
            self._slots.free_all()
            # Some round trips each, and a run's own task is killed soon after it was told to end.
            with ThreadPoolExecutor(READERS, thread_name_prefix="close") as pool:
                list(pool.map(self._close_session, left))

    def _close_session(self, worker: Running) -> None:
        try:
            worker.stack.close()
        except Exception as error:  # what was heard of it, or is durable, decides
            self._tell(logging.WARNING, f"closing the session of chunk {worker.chunk.ordinal}: {error!r}")

    def _tell(self, level: int, text: str) -> None:
        """Into the run's log; into this process's own where the instance's storage is away: workers go on."""
        try:
            self._context.log.log(level, text)
        except Exception as error:  # each kind of storage has its own
            logger.log(level, "%s (the run's log: %r)", text, error)

    def _cancel_unheard(self, attempt: Attempt) -> None:
        """End the worker of an attempt that nobody has heard of, if there is one."""
        try:
            if handle := self._launcher.find(attempt):
                self._launcher.cancel([handle])
        except Exception as error:
            self._tell(logging.ERROR, f"a worker may still run ({attempt.title}): {error!r}")


def _denied(error: OSError) -> bool:
    return isinstance(error, PermissionError) or "ACCESS_DENIED" in str(error)  # PyArrow's word for S3's
