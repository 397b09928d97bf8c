"""Shows progress and tables on a terminal, else in lines."""

from __future__ import annotations

import fcntl
import math
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, TextIO

from rich.box import Box
from rich.console import Console
from rich.progress import BarColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Column, Table
from rich.text import Text

from lakehouse_assets.environment.output import Unfailing, redacted
from lakehouse_assets.run.progress import Progress

NUMBER = re.compile(r"[\d.,]*")
RULED = Box("    \n    \n ─  \n    \n    \n    \n    \n    \n")
"""A rule below each header."""
UNFOLDED = 32
"""A column whose cells have at most so many characters is not folded."""
NARROWEST = 12
"""The least width of a column with longer cells; a terminal breaks the lines of a table that is still too wide."""
WIDEST = 2**16
"""The width for a file or a pipe, in which no line is broken."""
QUIET_SECONDS = 3.0
"""Without a terminal, the shortest time between two lines of a table."""
ALIVE_SECONDS = 15.0
"""Without a terminal, the time after which an unchanged line is printed again."""


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
            # In this order: what the buffers held goes to the log, not to the terminal.
            for number, original in saved.items():
                os.dup2(original, number)
                os.close(original)
            if isinstance(sys.stdout, Unfailing):
                # lost_output() is about the terminal, not about the log.
                sys.stdout.error = terminal.error


def _flush_or_drop(stream: TextIO) -> None:
    """If the log's disk is full, drops the buffer: it must not reach the terminal later."""
    try:
        stream.flush()
    except OSError:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())
        stream.flush()


class Lines:
    """Shows the progress of tables, as a context manager: bars on a terminal, elsewhere occasional lines."""

    def __init__(self, terminal: TextIO) -> None:
        # Not the last columns: a terminal shows ^C there, and a line that it breaks can't be erased.
        console = Console(file=terminal, force_terminal=terminal.isatty(), width=width_of(terminal) - 3)
        whole = Column(no_wrap=True)  # the bar takes what is left
        self._bars = Bars(
            TextColumn("{task.fields[title]}", table_column=whole, markup=False),
            BarColumn(None),
            TextColumn("{task.description}", table_column=whole),
            TimeElapsedColumn(table_column=whole),
            _TimeLeftColumn(compact=True, table_column=whole),
            console=console,
            auto_refresh=False,  # by a thread, and runs are forked
            transient=True,
            speed_estimate_period=math.inf,  # workers take minutes
            redirect_stdout=False,  # it goes to the log
            redirect_stderr=False,
            expand=True,
            disable=not console.is_interactive,  # also with TERM=dumb
        )

    def __enter__(self) -> Lines:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def add(self, title: str, partitions: int | None) -> Line:
        """Adds a table. partitions: their number, or None."""
        return Line(self._bars, title, partitions)

    def refresh(self) -> None:
        """Shows the time that has passed."""
        self._bars.refresh()


class _TimeLeftColumn(TimeRemainingColumn):
    def render(self, task: Task) -> Text:
        return super().render(task).append(" left" if task.total else "")


class Line:
    """A table's progress."""

    def __init__(self, bars: Bars, title: str, partitions: int | None) -> None:
        self._bars = bars
        self._title = title
        self._partitioned = partitions is not None
        self._state = Progress(title, 0, partitions or 1, 0, time.time())
        self._shown = ""
        self._shown_at = 0.0
        self._task = bars.add_task("", total=partitions, title=title)
        self._show()

    def update(self, state: Progress) -> None:
        """Shows the progress; without a terminal, not too often."""
        self._state = state
        self._show()

    def end(self, word: str) -> None:
        """Prints the last line. word: how the run ended, such as ``done``."""
        self._bars.remove_task(self._task)
        self._bars.refresh()  # else the bar is shown once more, below the line
        self._print(self._title, f"{word} in {duration(time.time() - self._state.started_at)}")

    def _show(self) -> None:
        text, now = self._text(), time.time()
        if not self._bars.disable:
            # A bar leaves less room than a line.
            short = text.replace(" partitions", "").replace(" running", "")
            self._bars.update(self._task, description=short, completed=self._state.done, refresh=True)
        elif now - self._shown_at >= (ALIVE_SECONDS if text == self._shown else QUIET_SECONDS):
            self._shown, self._shown_at = text, now
            self._print(*filter(None, (self._title, text, duration(now - self._state.started_at))))

    def _print(self, *parts: str) -> None:
        self._bars.console.print(Text("  ".join(parts)), soft_wrap=True)

    def _text(self) -> str:
        state = self._state
        parts = [f"{state.done}/{state.total} partitions"] if self._partitioned else []
        if state.running:
            parts.append("1 worker running" if state.running == 1 else f"{state.running} workers running")
        if state.waiting:
            parts.append("waiting for a slot")
        return "  ".join(parts)


def duration(seconds: float) -> str:
    """Writes minutes and seconds, ``1:05``."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def width_of(stream: TextIO) -> int:
    """Returns a terminal's columns (80 if unknown); WIDEST for a file or a pipe."""
    return (os.get_terminal_size(stream.fileno()).columns or 80) if stream.isatty() else WIDEST


def table(header: Sequence[str], rows: Sequence[Sequence[str]], to: TextIO | None = None) -> str:
    """Returns a text table; columns of numbers are right-aligned.

    to: the stream, by default standard output. On a terminal, the cells fold to fit.
    """
    grid = Table(box=RULED, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    # Two characters between columns, none at the end.
    needed = -2
    for name, *cells in zip(header, *rows, strict=True):
        justify: Literal["left", "right"] = "right" if all(map(NUMBER.fullmatch, cells)) else "left"
        # Short columns keep their width; the others share what is left.
        longest = max(map(len, (name, *cells)))
        least = longest if longest <= UNFOLDED else NARROWEST
        grid.add_column(Text(name), justify=justify, no_wrap=least == longest, overflow="fold", min_width=least)
        needed += least + 2
    for row in rows:
        grid.add_row(*(Text(redacted(cell)) for cell in row))  # no secret is found once it is folded
    console = Console(width=WIDEST, color_system=None)
    with console.capture() as shown:
        console.print(grid, width=max(width_of(to or sys.stdout), needed))
    return "\n".join(line.rstrip() for line in shown.get().splitlines())
