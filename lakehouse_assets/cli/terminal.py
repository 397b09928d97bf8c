"""Shows progress: on a terminal by a line that changes, elsewhere by a new line now and then."""

from __future__ import annotations

import fcntl
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from lakehouse_assets.environment.output import Unfailing
from lakehouse_assets.run.progress import Progress

NUMBER = re.compile(r"[\d.,]*")
REFRESH_SECONDS = 0.5
QUIET_SECONDS = 3.0
"""The shortest time between two lines without a terminal."""
ALIVE_SECONDS = 15.0
"""The longest time between two lines without a terminal, even if nothing changes."""


@contextmanager
def output_to(log: Path) -> Iterator[TextIO]:
    """Sends this process's and its children's output to ``log``; yields the former output.

    Truncates the log unless another process is writing it: then both write whole lines. Redirects file descriptors, as
    Dagster's capture of compute logs does.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    saved = {number: os.dup(number) for number in (1, 2)}
    with log.open("a") as file:
        terminal = Unfailing(saved[1])
        with suppress(OSError):  # another process holds the lock; devices know neither locks nor lengths
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate(0)
        for number in saved:
            os.dup2(file.fileno(), number)
        try:
            yield terminal
        finally:
            for stream in (sys.stdout, sys.stderr):
                _flush_or_drop(stream)
            terminal.flush()
            for number, original in saved.items():
                os.dup2(original, number)
                os.close(original)
            if isinstance(sys.stdout, Unfailing):
                sys.stdout.error = terminal.error  # not the log's


def _flush_or_drop(stream: TextIO) -> None:
    """If the log's disk is full, drops what is buffered: it must not reach the terminal later."""
    try:
        stream.flush()
    except OSError:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())
        stream.flush()


class Line:
    """A table's progress, as a context manager; on exit, the line is final."""

    def __init__(self, terminal: TextIO, title: str, partitions: int | None) -> None:
        self._terminal = terminal
        self._live = terminal.isatty()
        self._title = title
        self._partitioned = partitions is not None
        self._state = Progress(title, 0, partitions or 1, 0, time.time())
        self._shown = ""
        self._shown_at = 0.0
        self._ended = threading.Event()
        self._clock = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Line:
        self._show()
        if self._live:
            self._clock.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._live:
            self._clock.join()
            self._terminal.write("\r\x1b[K")

    def update(self, state: Progress) -> None:
        """Shows the progress; without a terminal, as a new line, but not too often."""
        self._state = state
        if not self._live:
            self._show()

    def end(self, word: str) -> None:
        """Prints the last line. word: how the run ended."""
        self.__exit__()
        self._terminal.write(f"{self._title}  {word} in {duration(time.time() - self._state.started_at)}\n")
        self._terminal.flush()

    def _tick(self) -> None:
        while not self._ended.wait(REFRESH_SECONDS):
            self._show()

    def _show(self) -> None:
        state, now = self._state, time.time()
        parts = [self._title]
        if self._partitioned:
            parts.append(f"{state.done}/{state.total} partitions")
        if state.running:
            parts.append("1 worker running" if state.running == 1 else f"{state.running} workers running")
        if state.waiting:
            parts.append("waiting for a slot")
        text = "  ".join(parts)
        if not self._live and now - self._shown_at < (ALIVE_SECONDS if text == self._shown else QUIET_SECONDS):
            return
        self._shown, self._shown_at = text, now
        elapsed = duration(now - state.started_at)
        self._terminal.write(f"\r\x1b[K{text}  {elapsed}" if self._live else f"{text}  {elapsed}\n")
        self._terminal.flush()


def duration(seconds: float) -> str:
    """Writes minutes and seconds, ``1:05``."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a text table; columns of numbers are right-aligned."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    columns = [column for _, *column in zip(header, *rows, strict=True)]
    align = [str.rjust if all(map(NUMBER.fullmatch, column)) else str.ljust for column in columns]
    lines = [header, ["─" * width for width in widths], *rows]
    return "\n".join(
        "  ".join(to(cell, width) for to, cell, width in zip(align, line, widths, strict=True)).rstrip()
        for line in lines
    )
