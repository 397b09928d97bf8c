"""Keeps Dagster's event log on SQLite: a batch of events in one transaction, slots of pools claimed one at a time.

It is named in dagster.yaml; everything else about the log is Dagster's own.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

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
"""The time for which a locked file of Dagster is waited for. SQLite's own 5 s are over while somebody copies the file,
and a run whose last event is lost stays STARTED for ever."""


@cache
def wait_for_locks(home: str) -> None:
    """From now on, connections to SQLite files below a Dagster home wait LOCK_SECONDS for a lock.

    Each of Dagster's storages makes engines of its own, so SQLAlchemy is told for all of them. home: without links.
    """

    def be_patient(connection: Any, _: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            (_, _, file) = connection.execute("PRAGMA database_list").fetchone()
            if Path(os.path.realpath(file)).is_relative_to(home):
                connection.execute(f"PRAGMA busy_timeout = {LOCK_SECONDS * 1000}")

    event.listen(Pool, "connect", be_patient)


def dagster_home() -> Path:
    """Returns DAGSTER_HOME; where that is not set, ``dagster`` below LAKEHOUSE_HOME.

    It is not set where somebody runs a `dagster` command in the checkout, which uses its dagster.yaml.
    """
    return Path(os.environ.get("DAGSTER_HOME") or read_home() / "dagster")


class BatchedSqliteEventLog(SqliteEventLogStorage):
    """Dagster's event log in ``$DAGSTER_HOME/history/runs``, its usual place.

    With DAGSTER_EVENT_BATCH_SIZE set, Dagster (1.13.27) collects the planned and the materialization events of a run's
    partitions. Its own storage writes them one by one, each with two commits and two new engines: for 365 partitions
    this takes 3 s before the run starts, and 4 s after its commit.
    """

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        """Returns an empty schema: there is nothing to configure in dagster.yaml."""
        return {}

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> BatchedSqliteEventLog:
        """Opens the log below DAGSTER_HOME; where that is not set, it is ``dagster`` below LAKEHOUSE_HOME."""
        del config_value  # it is empty: dagster.yaml can't refer to DAGSTER_HOME
        home = dagster_home()
        wait_for_locks(os.path.realpath(home))
        return cls(str(home / "history" / "runs"), inst_data)

    def conn_string_for_shard(self, shard_name: str) -> str:
        """Returns the address of a run's database, or that of the index, which is made if it is not there."""
        make_database(Path(self.path_for_shard(shard_name)))
        return super().conn_string_for_shard(shard_name)

    def claim_concurrency_slot(
        self, concurrency_key: str, run_id: str, step_key: str, priority: int | None = None
    ) -> ConcurrencyClaimStatus:
        """Claims a slot as Dagster's storage does, but by one process at a time.

        Dagster looks for a free slot, locks its row and takes it. SQLite locks no rows: two runs at once would take the
        same slot, and more workers would run than the pool has slots.
        """
        with Path(self._base_dir, ".claims").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return super().claim_concurrency_slot(concurrency_key, run_id, step_key, priority)

    def store_event_batch(self, events: Sequence[dg.EventLogEntry]) -> None:
        """Stores one run's asset events in two transactions for all, other events one by one, as store_event would."""
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
