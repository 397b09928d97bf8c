"""The poll loop that drives one run's workers: claim a slot, submit, poll, take the receipt; one thread for all.
Where workers run is the launcher's, what was staged is judged elsewhere (audit.py)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from math import inf
from typing import Any

import dagster as dg

from lakehouse_assets.lakehouse.plan import Chunk
from lakehouse_assets.lakehouse.slots import Slots
from lakehouse_assets.worker.assignment import Assignment, Receipt
from resources.launchers.base import Ended, Handle, Launcher

# Short against a worker's seconds, long against a poll's microseconds.
POLL_SECONDS = 0.1
# A JVM that has nothing left to do ends in a second or two; one that hangs then is ended, it keeps a slot.
ENDING_SECONDS = 10.0


@dataclass(frozen=True)
class WorkerFailure:
    """Why a chunk has no receipt. traceback: the step's own frames, empty when the worker could not say."""

    chunk: Chunk
    message: str
    traceback: str = ""


@dataclass
class Progress:
    """What a run's workers have done so far."""

    receipts: dict[int, Receipt] = field(default_factory=dict)
    failures: list[WorkerFailure] = field(default_factory=list)
    links: dict[int, str] = field(default_factory=dict)
    running: int = 0


@dataclass(frozen=True)
class _Running:
    chunk: Chunk
    handle: Handle
    session: dg.PipesSession
    reader: Any
    stack: ExitStack
    deadline: float  # on time.monotonic()


class Drive:
    """One run's workers, as a context: leaving it waits for those that are ending, an exception cancels them all."""

    def __init__(
        self,
        context: dg.AssetExecutionContext,
        launcher: Launcher,
        slots: Slots,
        find_receipts: Callable[[], Mapping[int, Receipt]],
        report: Callable[[Progress], None],
        timeout: timedelta | None = None,
    ) -> None:
        """timeout: how long a worker may run, from its start; None is as long as it takes."""
        self._context = context
        self._launcher = launcher
        self._slots = slots
        self._find_receipts = find_receipts
        self._report = report
        self._timeout = timeout
        self._running: dict[str, _Running] = {}
        self._ending: list[_Running] = []

    def __enter__(self) -> Drive:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            while self._ending and kind is None:
                self._reap()
                time.sleep(POLL_SECONDS)
        finally:  # also when *Terminate* arrives while waiting
            self._cancel()

    def run(
        self, chunks: Sequence[Chunk], assignments: Mapping[int, Assignment], progress: Progress, keep_on: bool
    ) -> None:
        """Drive all chunks to a receipt or a failure; fills ``progress``.

        assignments: by chunk ordinal. keep_on: submit further chunks behind a failure. Without it nothing more
        starts, and workers that run go on: their receipts spare a retry the work.
        """
        waiting = deque(chunks)
        while self._running or waiting:
            if waiting and progress.failures and not keep_on:
                self._slots.free(waiting[0].ordinal)  # or its place in the queue, which would be given a slot in vain
                waiting.clear()
            elif waiting and self._slots.claim(waiting[0].ordinal):
                chunk = waiting.popleft()
                self._submit(chunk, assignments[chunk.ordinal], progress)
            self._poll(progress)
            progress.running = len(self._running)
            self._report(progress)
            if self._running or waiting:
                time.sleep(POLL_SECONDS)

    def _submit(self, chunk: Chunk, assignment: Assignment, progress: Progress) -> None:
        injector, reader = self._launcher.pipes()
        with ExitStack() as stack:
            session = stack.enter_context(
                dg.open_pipes_session(
                    context=self._context,
                    context_injector=injector,
                    message_reader=reader,
                    extras={"assignment": assignment.to_json()},
                )
            )
            handle = self._launcher.submit(assignment, session.get_bootstrap_env_vars())
            deadline = time.monotonic() + (self._timeout.total_seconds() if self._timeout else inf)
            running = _Running(chunk, handle, session, reader, stack.pop_all(), deadline)
        self._running[handle.id] = running
        progress.links[chunk.ordinal] = self._launcher.link(handle)
        self._context.log.info(f"chunk {chunk.ordinal} ({chunk}): {self._launcher.link(handle)} started")

    def _poll(self, progress: Progress) -> None:
        ended = self._launcher.poll([r.handle for r in self._running.values()])
        for worker in tuple(self._running.values()):
            worker.reader.read()
            messages = worker.session.get_custom_messages()
            receipt = next((Receipt.from_json(m["receipt"]) for m in messages if "receipt" in m), None)
            if receipt is not None:
                # Its work is durable; the process ends by itself while the run goes on, and keeps its slot till then.
                progress.receipts[worker.chunk.ordinal] = receipt
                del self._running[worker.handle.id]
                self._ending.append(replace(worker, deadline=time.monotonic() + ENDING_SECONDS))
            elif worker.handle.id in ended:
                self._judge(self._running.pop(worker.handle.id), ended[worker.handle.id], progress)
            elif time.monotonic() > worker.deadline:
                self._launcher.cancel([worker.handle])
                overdue = Ended(f"was still running after {self._timeout} (worker_timeout), was ended")
                self._judge(self._running.pop(worker.handle.id), overdue, progress)
        self._reap()

    def _judge(self, worker: _Running, ended: Ended, progress: Progress) -> None:
        """A worker that ended without reporting a receipt: the durable one decides, then what the worker said."""
        self._close(worker)
        if receipt := self._find_receipts().get(worker.chunk.ordinal):
            progress.receipts[worker.chunk.ordinal] = receipt
            return
        said = next((m["error"] for m in worker.session.get_custom_messages() if "error" in m), None)
        failure = (
            WorkerFailure(worker.chunk, f"{said['type']}: {said['message']}", said["traceback"])
            if said
            else WorkerFailure(worker.chunk, f"the worker {ended.reason} and left no receipt")
        )
        self._context.log.error(
            f"chunk {worker.chunk.ordinal} ({worker.chunk}): {failure.message}\n{failure.traceback}"
        )
        progress.failures.append(failure)

    def _reap(self) -> None:
        if overdue := [w.handle for w in self._ending if time.monotonic() > w.deadline]:
            self._launcher.cancel(overdue)
        ended = self._launcher.poll([w.handle for w in self._ending])
        for worker in [w for w in self._ending if w.handle.id in ended]:
            self._ending.remove(worker)
            self._close(worker)

    def _close(self, worker: _Running) -> None:
        worker.stack.close()
        self._slots.free(worker.chunk.ordinal)

    def _cancel(self) -> None:
        left = [*self._running.values(), *self._ending]
        self._running.clear()
        self._ending.clear()
        try:
            self._launcher.cancel([worker.handle for worker in left])
        finally:
            for worker in left:
                worker.stack.close()
            self._slots.free_all()
