"""Dagster's runs on SQLite. Processes of active runs and daemons hold locks, by which dead ones are found."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster._core.storage.runs import SqliteRunStorage
from dagster._serdes import ConfigurableClassData

from lakehouse_assets.environment.databases import make_database
from lakehouse_assets.environment.event_log import dagster_home
from lakehouse_assets.environment.process_locks import ProcessLocks, daemon_locks

if TYPE_CHECKING:
    from dagster._daemon.types import DaemonHeartbeat

ENDS = (dg.DagsterEventType.RUN_SUCCESS, dg.DagsterEventType.RUN_FAILURE, dg.DagsterEventType.RUN_CANCELED)


class LockingSqliteRunStorage(SqliteRunStorage):
    """Dagster's runs in ``$DAGSTER_HOME/history``, with locks in ``$DAGSTER_HOME/alive``.

    A run's own process takes its lock as it stores the event that starts the run, before any op begins or waits.
    """

    locks: ProcessLocks
    daemons: ProcessLocks

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        """Returns an empty schema."""
        return {}

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> LockingSqliteRunStorage:
        """Opens the storage below dagster_home()."""
        del config_value  # it is empty: dagster.yaml can't refer to DAGSTER_HOME
        return cls.from_folder(dagster_home(), inst_data)

    @classmethod
    def from_folder(cls, folder: Path, inst_data: ConfigurableClassData | None = None) -> LockingSqliteRunStorage:
        """Opens the storage of a DAGSTER_HOME."""
        make_database(folder / "history" / "runs.db")
        storage = cls.from_local(str(folder / "history"), inst_data)
        storage.locks, storage.daemons = ProcessLocks(folder / "alive"), daemon_locks(folder)
        return storage

    def handle_run_event(self, run_id: str, event: dg.DagsterEvent, update_timestamp: datetime | None = None) -> None:
        """Updates the status; holds the lock from before the start until after the end."""
        if event.event_type is dg.DagsterEventType.RUN_START:
            self.locks.hold(run_id)
        super().handle_run_event(run_id, event, update_timestamp)
        if event.event_type in ENDS:
            self.locks.release(run_id)

    def add_daemon_heartbeat(self, daemon_heartbeat: DaemonHeartbeat) -> None:
        """Stores a heartbeat; the daemon's process, which calls this, also holds a lock."""
        if daemon_heartbeat.daemon_id:
            self.daemons.hold(daemon_heartbeat.daemon_id)
        super().add_daemon_heartbeat(daemon_heartbeat)
