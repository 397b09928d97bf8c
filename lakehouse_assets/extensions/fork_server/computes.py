"""The settings of local workers."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakehouse_assets.environment.computes import ComputeSettings, made
from lakehouse_assets.environment.env_reader import EnvReader

if TYPE_CHECKING:
    from lakehouse_assets.environment.launchers.base import Launcher

IDLE = timedelta(minutes=5)


@dataclass(frozen=True)
class Local(ComputeSettings):
    """Subprocesses on this machine."""

    remote = False

    idle: timedelta = IDLE
    """LAKEHOUSE_WORKER_IDLE, how long a worker stays after a chunk; 0: it ends."""

    @classmethod
    def read(cls, reader: EnvReader) -> Local:
        """Reads the settings; adds problems to the reader's."""
        found = reader.duration("LAKEHOUSE_WORKER_IDLE")
        return cls(IDLE if found is None else found)

    def launcher(self, settings: Any, worker: str) -> Launcher:
        """Makes the launcher. worker: the package for ``python -m``.

        No worker stays without Linux's /proc, which servers need, or under a debugger, which attaches to new processes.
        """
        command = (sys.executable, "-m", worker)
        if self.idle and Path("/proc/self/ns").is_dir() and "pydevd" not in sys.modules:
            return made("lakehouse_assets.extensions.fork_server.launcher:ForkServerLauncher", command, self.idle)
        return made("lakehouse_assets.environment.launchers.local:LocalLauncher", command)
