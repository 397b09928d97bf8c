"""The queue plugs into runs and code locations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import dagster as dg

from lakehouse_assets.run.extension import Extension, RunHook

if TYPE_CHECKING:
    from lakehouse_assets.declare.table import Table
    from lakehouse_assets.environment.settings import QueueSettings, Settings
    from lakehouse_assets.run.run import Run


class Queue(Extension):
    """Messages that request partitions."""

    def hooks(self, run: Run) -> Iterable[RunHook]:
        """Returns a hook if there is a queue, for every run: a backfill, too, removes from the inbox what it did."""
        from lakehouse_assets.extensions.queue.hook import RunQueue

        return [RunQueue(run)] if run.lakehouse.settings.queue is not None else []

    def definitions(self, tables: Sequence[Table], settings: Settings) -> dg.Definitions:
        """Returns the asset, the sensor, the checks and the redrive job; none unless LAKEHOUSE_QUEUE is set.

        If a person decides what runs, a remote queue's sensor starts stopped, so that nobody takes production's
        messages by accident.
        """
        if (queue := settings.queue) is None:
            return dg.Definitions()
        # Imported here: a code location without a queue need not load them.
        from lakehouse_assets.extensions.queue.redrive_job import redrive_job
        from lakehouse_assets.extensions.queue.sensor import arrivals_check, asset_key, queue_sensor

        by_hand = settings.by_hand and not queue.is_on_loopback
        status = dg.DefaultSensorStatus.STOPPED if by_hand else dg.DefaultSensorStatus.RUNNING
        return dg.Definitions(
            assets=[_asset(asset_key(queue), queue)],
            asset_checks=[arrivals_check(table) for table in tables if table.arrivals],
            sensors=[queue_sensor(tables, queue, status)],
            jobs=[redrive_job(tables, queue)],
        )


def _asset(key: dg.AssetKey, queue: QueueSettings) -> dg.AssetSpec:
    return dg.AssetSpec(
        key,
        group_name="queue",
        kinds={"sqs"},
        description="Messages that ask for partitions: how many there are, what waits in the inbox, and for how long.",
        metadata={"url": dg.MetadataValue.url(queue.url), "dead_letters": dg.MetadataValue.url(queue.dead_letters)},
    )
