"""Ends the proxies of `dagster dev` whose code server was killed: it starts new proxies, but no new server behind one.
Where they are watched is ui.py; processes are read from /proc, as elsewhere there is nobody to ask."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

PROXY = ("code-server", "start")
SERVER = ("api", "grpc")
"""What the command of a proxy, and of the server behind it that has loaded the code, contain (Dagster 1.13.27)."""
LOOKS = 2
"""So often in a row a proxy must be seen without a server behind it. While code is reloaded it may have none."""


@dataclass
class CodeServers:
    """Those of one `dagster dev`. group: its process group."""

    group: int
    _alone: dict[int, int] = field(default_factory=dict)

    def end_the_lonely(self) -> int:
        """Look once. Returns how many proxies were ended, for which `dagster dev` starts others."""
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
    """A process that lives. group: its process group."""

    pid: int
    parent: int
    group: int
    command: tuple[str, ...]

    def runs(self, words: Sequence[str]) -> bool:
        """Whether its command has these words, one after the other."""
        return any(self.command[at : at + len(words)] == words for at in range(len(self.command)))


def processes() -> Iterator[Process]:
    """Those of this machine; none where there is no /proc."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # Behind the name, which may have blanks and parentheses: state, parent, group.
            state, parent, group = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:3]
            command = (folder / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        except OSError:
            continue  # gone meanwhile
        if state != "Z":
            yield Process(int(folder.name), int(parent), int(group), tuple(map(os.fsdecode, command)))
