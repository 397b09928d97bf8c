"""The queue plugs into runs and code locations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from lakehouse_assets.run.extension import Extension, RunHook

if TYPE_CHECKING:
    import dagster as dg

    from lakehouse_assets.declare.table import Table
    from lakehouse_assets.environment.settings import Settings
    from lakehouse_assets.run.run import Run


class Queue(Extension):
    """Messages that request partitions."""

    def hooks(self, run: Run) -> Iterable[RunHook]:
        """Returns one if the environment has a queue."""
        from lakehouse_assets.extensions.queue.hook import RunQueue

        return [RunQueue(run)] if run.lakehouse.settings.queue is not None else []

    def definitions(self, tables: Sequence[Table], settings: Settings) -> dg.Definitions:
        """Returns the sensor, its check and the redrive job."""
        from lakehouse_assets.extensions.queue.definitions import queue_definitions

        return queue_definitions(tables, settings)
