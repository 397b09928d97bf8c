"""The Dagster pool of the jobs that maintain tables: one run of them at a time, unless a person allows more.

Spark workers have a pool of their own, drive/slots.py's.
"""

from __future__ import annotations

import dagster as dg

POOL = "lake_maintenance"


def bound_pool(instance: dg.DagsterInstance, pool: str = POOL, limit: int = 1) -> None:
    """Sets a pool's limit where nobody has set one.

    An instance has one default for all pools, which is too many here, and Dagster gives it to the pool with the first
    run that needs it. A limit that a person sets stays.
    """
    storage = instance.event_log_storage
    if not storage.supports_global_concurrency_limits:
        return
    if pool not in {one.name for one in storage.get_pool_limits() if not one.from_default}:
        storage.set_concurrency_slots(pool, limit)
