"""Keeps one planned execution of each check of a run: Dagster plans a check once for every partition of the run.

How the audit's result looks is in audit_check.py.
"""

from __future__ import annotations

import logging

import dagster as dg
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable as Executions
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from sqlalchemy import and_, delete, func, select, update

logger = logging.getLogger(__name__)


def plan_checks_once(instance: dg.DagsterInstance, run_id: str) -> None:
    """Keeps one planned execution of each of the run's checks, without a partition, which its evaluation then fills.

    A check that is not partitioned is evaluated once, but Dagster (1.13.27) plans it for each key of a run over time
    windows. The others stay for ever: the UI shows a year's run as one evaluation among 365 that were skipped, and a
    plot, which is made of the newest ones, has a single point. Nothing is done where executions are not kept in SQL
    (Dagster+). Raises nothing: a run is not failed for what it looks like.
    """
    storage = instance.event_log_storage
    if not isinstance(storage, SqlEventLogStorage):
        return
    of_keys = and_(
        Executions.c.run_id == run_id,
        Executions.c.partition.is_not(None),
        Executions.c.execution_status == AssetCheckExecutionRecordStatus.PLANNED.value,
    )
    first = select(func.min(Executions.c.id)).where(of_keys).group_by(Executions.c.asset_key, Executions.c.check_name)
    try:
        with storage.index_connection() as connection:
            kept = [row[0] for row in connection.execute(first)]
            connection.execute(delete(Executions).where(and_(of_keys, Executions.c.id.not_in(kept))))
            connection.execute(update(Executions).where(Executions.c.id.in_(kept)).values(partition=None))
    except Exception as error:  # each kind of storage has its own
        logger.warning("the run's checks stay planned for each of its partitions: %r", error)
