"""The resource ``pyspark``, for assets that are no tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import dagster as dg

if TYPE_CHECKING:
    from lakehouse_assets.run.lake_pyspark import LakePySpark


def pyspark(tables: Sequence[str]) -> dg.ResourceDefinition:
    """Returns dagster-pyspark's resource with a session that reads these tables as ``lake.<namespace>.<table>``."""

    @dg.resource(
        required_resource_keys={"lakehouse"},
        description="A Spark session in the run's own process; it reads the tables as lake.<namespace>.<table>.",
    )
    def made(context: dg.InitResourceContext) -> LakePySpark:
        from lakehouse_assets.run.lake_pyspark import LakePySpark  # imports PySpark

        return LakePySpark.of(context.resources.lakehouse, tables)

    return made
