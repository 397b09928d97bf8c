"""Opens the Dagster instance, limits its pools and reaps dead runs.

To *reap* a run means to mark it as failed and free its slots, because its process is dead.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import dagster as dg

from lakehouse_assets.drive.liveness import ACTIVE, reap
from lakehouse_assets.drive.slots import POOL
from lakehouse_assets.environment.databases import make_database
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.extensions.fork_server.folders import WORKERS, alive
from lakehouse_assets.maintenance.job import bound_pool


@contextmanager
def opened(settings: Settings) -> Iterator[tuple[dg.DagsterInstance, list[str]]]:
    """Opens the instance; yields it and the ids of reaped dead runs.

    Processes of one home open it in turn: SQLite files that two create at once can't be opened any more ("Version table
    'alembic_version' has more than one head").
    """
    with ExitStack() as stack:
        with (settings.home / "dagster" / ".opening").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            make_database(settings.home / "dagster" / "schedules" / "schedules.db")
            instance = stack.enter_context(dg.DagsterInstance.get())
            reaped = tidy(instance, settings)
        yield instance, reaped


def tidy(instance: dg.DagsterInstance, settings: Settings) -> list[str]:
    """Reaps dead runs, sets limits of pools that have none, empties the scratch folder if no run is active.

    Returns the ids of reaped runs.
    """
    reaped = reap(instance)
    bound_pool(instance, POOL, settings.max_workers)
    bound_pool(instance)  # maintenance: one run at a time
    if not instance.get_runs(dg.RunsFilter(statuses=ACTIVE), limit=1):
        for path in (settings.home / "tmp").iterdir():  # left by killed workers
            # Another process that starts may be deleting the same.
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
    alive(settings.home / WORKERS)  # removes the folders of workers that were killed
    return reaped


def set_worker_limit(instance: dg.DagsterInstance, settings: Settings) -> None:
    """Limits the workers' pool to LAKEHOUSE_MAX_WORKERS, whatever its limit was. Call it before workers can run."""
    instance.event_log_storage.set_concurrency_slots(POOL, settings.max_workers)
