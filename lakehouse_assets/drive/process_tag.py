"""Names the process that drives a run in a tag of the run, so that others can find out whether it is alive.

What becomes of a run whose process is gone is run/reaper.py's.
"""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

from dagster._core.storage.tags import HIDDEN_TAG_PREFIX

# Dagster's UI hides tags with this prefix: a person has no use for this one.
PROCESS_TAG = f"{HIDDEN_TAG_PREFIX}lakehouse_process"


def process_tag() -> dict[str, str]:
    """Returns the run tag that names this process: ``{PROCESS_TAG: "<hostname>:<pid>:<start time>"}``.

    The start time tells a process from a later one that was given the same pid.
    """
    return {PROCESS_TAG: f"{socket.gethostname()}:{os.getpid()}:{start_time(os.getpid())}"}


def start_time(pid: int) -> str | None:
    """Returns the start time of a process of this host, in the system's own format; None if it is gone or a zombie."""
    if Path("/proc/self/stat").is_file():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        # Counted after the command, which may contain spaces: state is field 3, starttime field 22 (proc(5)).
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    fields = subprocess.run(command, capture_output=True, text=True).stdout.split()
    return None if not fields or fields[0].startswith("Z") else "-".join(fields[1:]).replace(":", ".")


def is_dead(tag: str) -> bool:
    """Says whether a process tag's value names a process of this host that is gone."""
    host, pid, started = tag.rsplit(":", 2)
    return host == socket.gethostname() and start_time(int(pid)) != started
