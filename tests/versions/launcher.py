"""Launchers of workers in another environment: a process for each, as in production, or all in one warm JVM.
The other side of the pipe is warm.py."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from lakehouse_assets.environment.launchers.base import Attempt, Ended, Handle
from lakehouse_assets.environment.launchers.local import LocalLauncher
from lakehouse_assets.run.resource import WORKER


def cold(interpreter: Path, cache: Path) -> LocalLauncher:
    """Each worker a process of that Python. cache: their LAKEHOUSE_CACHE."""
    return LocalLauncher(["env", f"LAKEHOUSE_CACHE={cache}", str(interpreter), "-m", WORKER])


@contextmanager
def warm(interpreter: Path, cache: Path) -> Iterator[LocalLauncher]:
    """One worker at a time, all in one process of that Python, which ends with the context."""
    process = subprocess.Popen(
        [interpreter, "-m", "tests.versions.warm"],
        env={**os.environ, "LAKEHOUSE_CACHE": str(cache)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield _Warm(process)
    finally:
        process.communicate()


class _Warm(LocalLauncher):
    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__(())
        self._process = process
        self._submitted = 0

    def submit(self, attempt: Attempt, environment: Mapping[str, str]) -> Handle:
        """Returns when the worker has ended."""
        print(json.dumps(dict(environment)), file=self._process.stdin, flush=True)
        self._submitted += 1
        return Handle(str(self._submitted), self._process.stdout.readline().strip())

    def poll(self, handles: Sequence[Handle]) -> dict[str, Ended]:
        return {handle.id: Ended(f"ended with {handle.state or 'its whole process'}") for handle in handles}

    def cancel(self, handles: Sequence[Handle]) -> None:
        """Nothing runs on: submit has waited."""
