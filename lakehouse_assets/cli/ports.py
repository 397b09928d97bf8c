"""Says which process listens on a port of this machine's loopback address, as far as this user may know (proc(5))."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

from lakehouse_assets.environment.machine import SetupError

HOST = "127.0.0.1"
LISTENING = "0A"


def check_port(port: int) -> None:
    """Raises SetupError when the port of the loopback address can't be used, naming the process that listens there."""
    with socket.socket() as probe:
        # As the server does: a port in TIME_WAIT can be used.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            pid = listener(port) if isinstance(error, OSError) else None
            by = f" by process {pid}: {_command(pid)}" if pid else ""
            raise SetupError(f"port {port} of {HOST} can't be used ({reason}{by}); choose another by --port") from error


def listener(port: int) -> int | None:
    """Returns the id of the process that listens on the port; None if there is none, or another user's."""
    sockets = {f"socket:[{inode}]" for name in ("tcp", "tcp6") for inode in _listening(Path("/proc/net", name), port)}
    for folder in Path("/proc").iterdir() if sockets else ():
        if folder.name.isdecimal():
            with suppress(OSError):  # it has ended, or is another user's
                if any(os.readlink(link) in sockets for link in folder.joinpath("fd").iterdir()):
                    return int(folder.name)
    return None


def _listening(table: Path, port: int) -> list[str]:
    """Returns the inodes of the sockets that listen on the port, of one of the system's tables."""
    with suppress(FileNotFoundError):  # without IPv6 there is no tcp6
        rows = [line.split() for line in table.read_text().splitlines()[1:]]
        return [row[9] for row in rows if row[3] == LISTENING and int(row[1].rpartition(":")[2], 16) == port]
    return []


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:120]
    except OSError:
        return "it has just ended"
