"""Opens the Dagster instance and makes it ready: the pool's limit, and what dead runs left behind.
Its configuration is dagster.yaml's."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import dagster as dg

from lakehouse_assets.drive.slots import POOL
from lakehouse_assets.run.reaper import UNDER_WAY, reap
from resources.settings import Settings


@contextmanager
def opened(settings: Settings) -> Iterator[tuple[dg.DagsterInstance, list[str]]]:
    """The instance and the ids of the dead runs that were reaped, one process of a home at a time until it is open.

    Two processes that make Dagster's SQLite files at once leave them with two versions, and no Dagster opens them
    again ("Version table 'alembic_version' has more than one head").
    """
    with ExitStack() as stack:
        with (settings.home / "dagster" / ".opening").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            instance = stack.enter_context(dg.DagsterInstance.get())
            reaped = tidy(instance, settings)
        yield instance, reaped


def tidy(instance: dg.DagsterInstance, settings: Settings) -> list[str]:
    """Reap dead runs, set the pool's limit, and with no run under way empty the scratch folder.

    Returns the ids of the reaped runs.
    """
    reaped = reap(instance)
    instance.event_log_storage.set_concurrency_slots(POOL, settings.max_workers)
    if not instance.get_runs(dg.RunsFilter(statuses=UNDER_WAY), limit=1):
        for left in (settings.home / "tmp").iterdir():  # of workers that were killed: the others clean up themselves
            # Another start may be at it as well.
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
    return reaped
