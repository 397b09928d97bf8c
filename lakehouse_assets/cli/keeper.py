"""The keeper: runs a command until the keeper's parent ends, even if killed, then ends all that the command started.

It is a separate process that imports nothing else.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

# `dagster dev` waits up to 60 s for each of its services, longer than a person wants to wait after Ctrl-C.
GRACE_SECONDS = 15.0
# The time between two checks that the command still runs.
LOOK_SECONDS = 0.2


def kept(command: Sequence[str], lock: int) -> subprocess.Popen[bytes]:
    """Starts a keeper with the command in a new session.

    Once the keeper's standard input closes, as it does when the caller dies, the keeper ends the command and exits with
    the command's status. Both inherit lock, a locked file's descriptor: the file stays locked while one of them runs.
    """
    return subprocess.Popen(
        [sys.executable, "-m", __name__, str(lock), *command],
        stdin=subprocess.PIPE,
        start_new_session=True,
        pass_fds=[lock],
    )


def keep(command: Sequence[str], lock: int) -> int:
    """Runs the command until it ends or standard input closes. Returns its exit status."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        process_group=0,  # so that all its processes can be ended with it
        pass_fds=[lock],
    )
    with suppress(KeyboardInterrupt):
        while process.poll() is None:
            # Standard input is readable at its end, where a read returns nothing.
            closed, _, _ = select.select([0], [], [], LOOK_SECONDS)
            if closed and not os.read(0, 1):
                break
    _end(process)
    return process.returncode


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process as Ctrl-C does, then its process group: code servers outlive their parents."""
    # Another Ctrl-C must not cut this short.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(subprocess.TimeoutExpired, ProcessLookupError):
        process.send_signal(signal.SIGINT)
        process.wait(GRACE_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)  # active runs then cancel their workers
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline:
            process.poll()  # collects the leader: a zombie would keep the group alive
            os.killpg(process.pid, 0)  # raises once the group is empty
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    sys.exit(keep(sys.argv[2:], int(sys.argv[1])))
