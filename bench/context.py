"""Where measurements run: a scratch home, and child processes that answer in lines of JSON.
No measurement of its own but the wall time of a child and the memory of its tree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from lakehouse_assets.environment.machine import children_of, resident_bytes
from lakehouse_assets.environment.settings import Settings

ROOT = Path(__file__).parents[1]
SAMPLE_SECONDS = 0.2


class BenchError(RuntimeError):
    """A child failed or gave an answer that can't be right; the message ends with its output."""


@dataclass(frozen=True)
class Answer:
    """What a child printed (a JSON object a line), its wall seconds, and the peak of its tree's resident bytes."""

    lines: list[dict[str, Any]]
    seconds: float
    peak: int


@dataclass(frozen=True)
class Bench:
    """One run of the benchmark. home: scratch, removed afterwards. quick: everything once, to see that it works."""

    settings: Settings
    home: Path
    quick: bool

    def times(self, full: int, quick: int = 1) -> int:
        return quick if self.quick else full

    @cached_property
    def landing(self) -> Path:
        """A filled drop zone, shared by all contestants."""
        from lakehouse_assets.domains.nyc.landing import deliver, into_folder

        deliver(into_folder(self.home / "landing" / "nyc"))
        return self.home / "landing"

    def environment(self, home: str) -> dict[str, str]:
        """This process's environment with a LAKEHOUSE_HOME of its own, named ``home``, and the embedded catalog."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYICEBERG_")}
        own = {"LAKEHOUSE_HOME": str(self.home / home), "DAGSTER_HOME": str(self.home / home / "dagster")}
        return {**inherited, **own, "LAKEHOUSE_CACHE": str(self.settings.cache), "LAKEHOUSE_LANDING": str(self.landing)}

    def python(self, *arguments: object, env: Mapping[str, str]) -> Answer:
        """Run ``python <arguments>`` in the checkout. Raises BenchError when it fails."""
        return self.command([sys.executable, *map(str, arguments)], env=env)

    def command(self, command: Sequence[str], *, env: Mapping[str, str]) -> Answer:
        """Run a command in the checkout; lines of its output that are JSON objects are its answer."""
        log = self.home / f"child-{time.monotonic_ns()}.log"
        with log.open("w") as errors:
            started = time.perf_counter()
            process = subprocess.Popen(
                command, cwd=ROOT, env=dict(env), stdout=subprocess.PIPE, stderr=errors, text=True
            )
            with _watched(process.pid) as memory:
                output, _ = process.communicate()
            seconds = time.perf_counter() - started
        if process.returncode:
            tail = "\n".join((output + log.read_text()).splitlines()[-25:])
            raise BenchError(f"{' '.join(command)} exited with {process.returncode}:\n{tail}")
        return Answer([json.loads(line) for line in output.splitlines() if line.startswith("{")], seconds, memory.peak)


@dataclass
class _Memory:
    peak: int = 0
    ended: threading.Event = field(default_factory=threading.Event)

    def watch(self, pid: int) -> None:
        while not self.ended.wait(SAMPLE_SECONDS):
            self.peak = max(self.peak, sum(map(resident_bytes, _tree(pid))))


@contextmanager
def _watched(pid: int) -> Iterator[_Memory]:
    memory = _Memory()
    watcher = threading.Thread(target=memory.watch, args=(pid,), daemon=True)
    watcher.start()
    try:
        yield memory
    finally:
        memory.ended.set()
        watcher.join()


def _tree(pid: int) -> list[int]:
    return [pid, *(found for child in children_of(pid) for found in _tree(child))]
