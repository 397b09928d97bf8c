"""Runs workers as children of fork servers, which stay, idle, for the next chunk; see server.py."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from lakehouse_assets.environment.launchers.base import Attempt, Ended, Handle
from lakehouse_assets.environment.launchers.local import GRACE_SECONDS, REAP_SECONDS, LocalLauncher, end_of
from lakehouse_assets.environment.settings import worker_settings
from lakehouse_assets.extensions.fork_server.lease import STARTED, Lease, lease

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.05
"""Between two looks at servers that are to end."""


class ForkServerLauncher(LocalLauncher):
    """Runs each worker as a child of a server in ``<home>/workers``, which then stays for ``idle``.

    If no server can run a worker (a *cold* one), LocalLauncher does; the handle of such a worker has no Lease.
    """

    def __init__(self, command: Sequence[str], idle: timedelta) -> None:
        super().__init__(command)
        self._idle = idle

    def submit(self, attempt: Attempt, environment: Mapping[str, str]) -> Handle:
        """Hands the attempt to an idle server, or starts one. Raises SetupError if there is no suitable Java."""
        try:
            leased = lease(worker_settings(), attempt.spark_conf, attempt.packages, environment, idle=self._idle)
        except OSError as error:  # a full disk, or one without locks or sockets
            logger.warning("no worker can stay for the next chunk: %s", error)
            return super().submit(attempt, environment)
        # The handle's id is not the server's process id: one server may have two handles, as it may take the next chunk
        # before this process reads the end of the last one.
        return Handle(attempt.key, leased, datetime.now(UTC))

    def poll(self, handles: Sequence[Handle]) -> dict[str, Ended]:
        """Returns the ended workers."""
        for process in tuple(STARTED):  # also those that were idle when they ended, so that no handle knows them
            if process.poll() is not None:
                STARTED.discard(process)
        leased = {handle.id: handle.state.poll() for handle in handles if isinstance(handle.state, Lease)}
        return {id: end_of(ended) for id, ended in leased.items() if ended is not None} | super().poll(_cold(handles))

    def cancel(self, handles: Sequence[Handle]) -> None:
        """Ends the servers, with all that they and the steps have started.

        Servers that don't end are killed after GRACE_SECONDS; returns REAP_SECONDS later at the latest.
        """
        super().cancel(_cold(handles))
        leases: list[Lease] = [handle.state for handle in handles if isinstance(handle.state, Lease)]
        # First all are asked to end; those that have not are then killed.
        for end, seconds in ((Lease.let_go, GRACE_SECONDS), (Lease.kill, REAP_SECONDS)):
            for one in leases:
                if one.poll() is None:
                    end(one)
            until = time.monotonic() + seconds
            while time.monotonic() < until and any(one.poll() is None for one in leases):
                time.sleep(LOOK_SECONDS)
        for one in leases:  # a server that was killed could not remove its folder
            if not one.folder.is_alive:
                one.folder.remove()

    def link(self, handle: Handle) -> str:
        """Returns a phrase instead of a URL."""
        return f"local process {handle.state.pid}"


def _cold(handles: Sequence[Handle]) -> list[Handle]:
    return [handle for handle in handles if not isinstance(handle.state, Lease)]
