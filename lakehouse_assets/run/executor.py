"""Dagster's in-process executor, which also waits for PostgreSQL."""

from __future__ import annotations

import logging
import random
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from lakehouse_assets.drive.slots import UNREACHABLE_SECONDS
from lakehouse_assets.environment.databases import is_refused
from lakehouse_assets.environment.launchers.base import Patience

if TYPE_CHECKING:
    from sqlalchemy.engine import Dialect

logger = logging.getLogger(__name__)


@dg.executor(name=dg.in_process_executor.name, config_schema=dg.in_process_executor.config_schema.as_field())
def patient_executor(context: dg.InitExecutorContext) -> dg.Executor:
    """Runs steps in the run's own process, and makes this process wait while Dagster's database is away.

    Webserver, daemon and code servers make no executor, so they don't wait.
    """
    wait_for_database(context.instance)
    create = dg.in_process_executor.executor_creation_fn
    assert create is not None
    return create(context)


def wait_for_database(instance: dg.DagsterInstance) -> None:
    """Makes PostgreSQL storages wait for a server that is away, but not for one that refuses.

    Dagster (1.13.27) opens a connection for each query and gives up after 6 s. A run would lose its last events, and
    stay *started*. Now each connection waits, UNREACHABLE_SECONDS at most for each absence of the server.
    """
    postgres = sys.modules.get("dagster_postgres")  # imported if a storage uses it
    if postgres is None:
        return
    from sqlalchemy import event

    kinds = postgres.PostgresEventLogStorage, postgres.PostgresRunStorage, postgres.PostgresScheduleStorage
    patience = Patience(UNREACHABLE_SECONDS)

    def connect(dialect: Dialect, _: object, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        while True:
            try:
                connection = dialect.connect(*arguments, **keywords)
            except dialect.loaded_dbapi.OperationalError:
                # The first failure of an absence, which alone is logged.
                begins = patience.since is None
                if is_refused(*arguments, **keywords) or patience.failed(time.monotonic()):
                    raise
            else:
                patience.succeeded()
                return connection
            if begins:
                logger.warning("Dagster's database can't be reached; waiting for it, at most %d s", patience.seconds)
            # At random, so that waiting runs don't all connect at once when the server is back.
            time.sleep(random.uniform(0.5, 1.5))

    # is_refused() asks psycopg2's own libpq, so connections of other drivers don't wait.
    for storage in (instance.event_log_storage, instance.run_storage, instance.schedule_storage):
        if isinstance(storage, kinds) and storage._engine.dialect.driver == "psycopg2":
            event.listen(storage._engine, "do_connect", connect)
