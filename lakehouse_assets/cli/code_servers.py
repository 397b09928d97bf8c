"""Ends the proxies of `dagster dev` whose code server was killed: it starts new proxies, but no new server behind one.

When they are looked at is ui.py's. Processes are read from /proc; where there is none, nothing is ended.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

PROXY = ("code-server", "start")
SERVER = ("api", "grpc")
"""Words in the command of a proxy, and of the server behind it that has loaded the code (Dagster 1.13.27)."""
LOOKS = 2
"""How often in a row a proxy must be seen without a server to be ended: while code is reloaded it may have none."""


@dataclass
class CodeServers:
    """The code servers of one `dagster dev`."""

    group: int
    """The process group of `dagster dev`."""
    _alone: dict[int, int] = field(default_factory=dict)

    def end_the_lonely(self) -> int:
        """Looks once, and ends the proxies that had no server LOOKS times in a row; `dagster dev` starts others.

        Returns how many were ended.
        """
        own = [one for one in processes() if one.group == self.group]
        served = {one.parent for one in own if one.runs(SERVER)}
        alone = [one.pid for one in own if one.runs(PROXY) and one.pid not in served]
        self._alone = {pid: self._alone.get(pid, 0) + 1 for pid in alone}
        lonely = [pid for pid, looks in self._alone.items() if looks >= LOOKS]
        for pid in lonely:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(lonely)


@dataclass(frozen=True)
class Process:
    """A live process of this machine."""

    pid: int
    parent: int
    group: int
    command: tuple[str, ...]

    def runs(self, words: Sequence[str]) -> bool:
        """Says whether the command has these words, one after the other."""
        return any(self.command[at : at + len(words)] == words for at in range(len(self.command)))


def processes() -> Iterator[Process]:
    """Yields the live processes of this machine; none where there is no /proc."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # Behind the name, which may have blanks and parentheses: state, parent, group.
            state, parent, group = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:3]
            command = (folder / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        except OSError:
            continue  # gone meanwhile
        if state != "Z":
            yield Process(int(folder.name), int(parent), int(group), tuple(map(os.fsdecode, command)))
