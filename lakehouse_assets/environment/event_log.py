"""Dagster's event log on SQLite: events in batches, pools' slots claimed one by one."""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import dagster as dg
from dagster._core.events import ASSET_EVENTS
from dagster._core.storage.event_log import SqliteEventLogStorage
from dagster._serdes import ConfigurableClassData
from dagster._utils.concurrency import ConcurrencyClaimStatus
from sqlalchemy import event
from sqlalchemy.pool import Pool

from lakehouse_assets.environment.databases import make_database
from lakehouse_assets.environment.settings import read_home

LOCK_SECONDS = 60
"""SQLite's default of 5 s is too short while somebody copies Dagster's files, and a run whose last event is lost stays
STARTED for ever."""


@cache
def wait_for_locks(home: str) -> None:
    """Makes connections to SQLite files below a Dagster home wait LOCK_SECONDS for a lock.

    It listens to all of SQLAlchemy, as Dagster's storages make their own engines. home: a path without links.
    """

    def be_patient(connection: Any, _: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            # A row has a number, a name and a file; the first database is the main one.
            (_, _, file) = connection.execute("PRAGMA database_list").fetchone()
            if Path(os.path.realpath(file)).is_relative_to(home):
                connection.execute(f"PRAGMA busy_timeout = {LOCK_SECONDS * 1000}")

    event.listen(Pool, "connect", be_patient)


def dagster_home() -> Path:
    """Returns DAGSTER_HOME; if not set, as for `dagster` in the checkout, ``dagster`` below LAKEHOUSE_HOME."""
    return Path(os.environ.get("DAGSTER_HOME") or read_home() / "dagster")


class BatchedSqliteEventLog(SqliteEventLogStorage):
    """Dagster's event log in ``$DAGSTER_HOME/history/runs``, its usual place.

    With DAGSTER_EVENT_BATCH_SIZE, Dagster (1.13.27) passes the events of a run's partitions to the log in batches. Its
    own storage writes each event with two commits and two new engines: 365 partitions take 3 s before the run starts,
    and 4 s after its commit.
    """

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        """Returns an empty schema."""
        return {}

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> BatchedSqliteEventLog:
        """Opens the log below dagster_home()."""
        del config_value  # it is empty: dagster.yaml can't refer to DAGSTER_HOME
        home = dagster_home()
        wait_for_locks(os.path.realpath(home))
        log = cls(str(home / "history" / "runs"), inst_data)
        log.make_template()
        return log

    @property
    def _template(self) -> Path:
        """An empty log of a run, as this version of Dagster makes it."""
        return Path(self._base_dir, f".empty-{dg.__version__}")

    def make_template(self) -> None:
        """Has Dagster make an empty log, unless there is one."""
        if not self._template.exists():
            shard = f"empty-{uuid4()}"
            with self.run_connection(shard):
                pass
            Path(self.path_for_shard(shard)).rename(self._template)

    def conn_string_for_shard(self, shard_name: str) -> str:
        """Returns a database's address; creates the file if missing.

        Runs get a copy of an empty log: Dagster takes 0.1 s of CPU and five commits for its tables.
        """
        path = Path(self.path_for_shard(shard_name))
        if not path.exists() and self._template.exists():
            copy = path.with_name(f".{uuid4()}")
            shutil.copyfile(self._template, copy)
            with suppress(OSError):  # another process made it, or the file system has no links: then Dagster fills it
                path.hardlink_to(copy)
            copy.unlink()
        make_database(path)
        return super().conn_string_for_shard(shard_name)

    def claim_concurrency_slot(
        self, concurrency_key: str, run_id: str, step_key: str, priority: int | None = None
    ) -> ConcurrencyClaimStatus:
        """Claims a slot, one process at a time.

        Dagster locks a free slot's row, but SQLite locks no rows: two runs could take one slot.
        """
        with Path(self._base_dir, ".claims").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return super().claim_concurrency_slot(concurrency_key, run_id, step_key, priority)

    def store_event_batch(self, events: Sequence[dg.EventLogEntry]) -> None:
        """Stores asset events, all of one run, in two transactions (run's log, index); other events one by one."""
        batch = [event for event in events if event.dagster_event_type in ASSET_EVENTS]
        super().store_event_batch([event for event in events if event.dagster_event_type not in ASSET_EVENTS])
        if not batch:
            return
        inserts = [self.prepare_insert_event(event) for event in batch]
        with self.run_connection(batch[0].run_id) as connection:
            for insert in inserts:
                connection.execute(insert)
        with self.index_transaction() as connection:
            keys = [connection.execute(insert).inserted_primary_key for insert in inserts]
            ids = [key[0] for key in keys if key is not None]
            self._store_asset_event_tags(connection, batch, ids)
            stored = zip(batch, ids, strict=True)
            latest = {(e.get_dagster_event().asset_key, e.dagster_event_type): (e, id_) for e, id_ in stored}
            for event, id_ in latest.values():  # an asset's entry holds its last event of a type only
                self._store_asset_event(connection, event, id_)
