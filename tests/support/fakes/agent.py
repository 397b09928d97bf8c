"""Really runs what a fake service was asked to run: a process with the environment it was given and nothing more.
What its end means is the service's own."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

TICK_SECONDS = 0.05


@contextmanager
def ticking(tick: Callable[[], object], end: Callable[[], object]) -> Iterator[None]:
    """Call ``tick`` again and again meanwhile, as what runs on a service starts and ends with nobody looking; ``end``
    when nothing starts any more."""
    over = threading.Event()

    def until_over() -> None:
        while not over.wait(TICK_SECONDS):
            tick()

    ticker = threading.Thread(target=until_over, daemon=True)
    ticker.start()
    try:
        yield
    finally:
        over.set()
        ticker.join()
        end()


@dataclass
class Process:
    """One command, started after ``delay`` seconds at the first look at it. log: where its output goes."""

    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    delay: float = 0.0
    asked: float = field(default_factory=time.monotonic)
    started_at: float | None = None
    ended_at: float | None = None
    _popen: subprocess.Popen[bytes] | None = None
    _starting: threading.Lock = field(default_factory=threading.Lock)

    def look(self) -> str:
        """``pending``, ``running`` or ``ended``; starts the command when its time has come."""
        with self._starting:
            if self._popen is None:
                if self.ended_at is not None:
                    return "ended"
                if time.monotonic() < self.asked + self.delay:
                    return "pending"
                self._popen = self._start()
        if self._popen.poll() is None:
            return "running"
        self.ended_at = self.ended_at or time.time()
        return "ended"

    @property
    def pid(self) -> int | None:
        """None if it was never started."""
        return self._popen.pid if self._popen else None

    @property
    def code(self) -> int | None:
        """The exit code as a container's: 128 + the signal's number; None before the end, or if it never started."""
        code = self._popen.poll() if self._popen else None
        return code if code is None or code >= 0 else 128 - code

    def stop(self, grace: float = 3.0) -> None:
        """SIGTERM to the whole process group, then SIGKILL, as a container's runtime does. Waits for the end."""
        for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
            self._signal(number, seconds)

    def kill(self) -> None:
        """SIGKILL to the whole process group: a host that is gone, memory that ran out. Waits for the end."""
        self._signal(signal.SIGKILL, 5.0)

    def tail(self, lines: int = 50) -> list[str]:
        return self.log.read_text(errors="replace").splitlines()[-lines:] if self.log.exists() else []

    def _signal(self, number: int, seconds: float) -> None:
        with self._starting:
            if self._popen is None:  # never to start
                self.ended_at = self.ended_at or time.time()
                return
        with suppress(ProcessLookupError):
            os.killpg(self._popen.pid, number)
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(seconds)
        self.look()

    def _start(self) -> subprocess.Popen[bytes]:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.started_at = time.time()
        with self.log.open("wb") as output:
            return subprocess.Popen(
                list(self.command),
                env=dict(self.environment),
                cwd=self.log.parent,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
