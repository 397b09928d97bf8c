"""Chunks of one run token driven by the real loop in this process, with tests/support/tiny_worker.py as workers.
No services: those are driven.py's."""

# No `from __future__ import annotations` here: Dagster compares the context's annotation itself.

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import dagster as dg
from pyiceberg.io.pyarrow import PyArrowFileIO

from lakehouse_assets.drive.chunks import Chunk, Journal, Results
from lakehouse_assets.drive.liveness import start_time
from lakehouse_assets.drive.loop import driving
from lakehouse_assets.drive.slots import POOL
from lakehouse_assets.environment.launchers.base import Attempt, Launcher
from lakehouse_assets.environment.launchers.local import LocalLauncher
from lakehouse_assets.step.window import Window
from lakehouse_assets.wire.receipts import Receipt
from lakehouse_assets.wire.work import Assignment
from tests.support.attempts import attempt_at
from tests.support.without_pandas import COMMAND

TINY = (*COMMAND, "tests.support.tiny_worker")


@dataclass(frozen=True)
class UnreadableAtTimes(Journal):
    """Receipts that can't be read as often as ``workers.unreadable`` has it."""

    workers: "Workers"

    def find(self, attempts: Iterable[Attempt]) -> dict[int, Receipt]:
        if self.workers.unreadable:
            self.workers.unreadable -= 1
            raise OSError("S3 is out of reach")
        return super().find(attempts)


class Workers:
    """Drives tiny workers from within a real asset, as the factory does."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance) -> None:
        self.folder = folder
        (folder / "token").mkdir()
        self.instance = instance
        self.progress = Results()
        self.limits: list[int] = []
        self.unreadable = 0
        self.launcher: Launcher = LocalLauncher(TINY)

    def drive(
        self, *steps: str, again: Sequence[str] = (), keep_on: bool = True, timeout: timedelta | None = None
    ) -> Results:
        """One chunk and one worker for each step. again: the steps of the same chunks where they are staged again."""
        chunks = [Chunk(i, (f"key-{i}",)) for i in range(len(steps))]
        journal = UnreadableAtTimes(PyArrowFileIO(), f"{self.folder}/token", self)

        def first(steps: Sequence[str]) -> dict[int, Attempt]:
            pairs = zip(chunks, steps, strict=True)
            return {c.ordinal: attempt_at(_assignment(c, step, journal), timeout=timeout) for c, step in pairs}

        @dg.asset
        def tiny(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
            with driving(context, self.launcher, journal, self._report) as drive:
                self.progress = drive.results
                drive.run(chunks, first(steps), keep_on=keep_on)
                if again:
                    drive.results.forget_chunks()
                    drive.run(chunks, first(again), keep_on=keep_on)
            return dg.MaterializeResult()

        self.result = dg.materialize([tiny], instance=self.instance)
        return self.progress

    def _report(self, state: Results) -> None:
        self.limits.append(state.running)

    def taken(self) -> int:
        info = self.instance.event_log_storage.get_concurrency_info(POOL)
        return info.active_slot_count + info.pending_step_count + info.assigned_step_count

    def child_is_gone(self, chunk: int) -> bool:
        pid = int(Path(self.folder, "token", f"{chunk:05d}.json.child").read_text())
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and start_time(pid) is not None:
            time.sleep(0.05)
        return start_time(pid) is None


def _assignment(chunk: Chunk, step: str, journal: Journal) -> Assignment:
    return Assignment(
        table="demo.tiny",
        step=step,
        token="token",
        chunk=chunk.ordinal,
        window=Window(keys=chunk.keys),
        fork_base="base",
        receipt=journal.receipt_location(chunk.ordinal),
        code_version="1",
        code="1",
    )
