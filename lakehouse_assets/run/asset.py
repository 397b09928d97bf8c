"""The asset factory: makes a declared table a Dagster asset of one op, with a blocking audit check.
What the op does is in materialization.py."""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

import warnings
from collections.abc import Iterator
from typing import Any

import dagster as dg

from lakehouse_assets.declare.table import Table
from lakehouse_assets.errors import LakehouseError, PublishContended
from lakehouse_assets.run import metadata
from lakehouse_assets.run.audit_check import AUDIT
from lakehouse_assets.run.materialization import Materialization
from lakehouse_assets.run.resource import Lakehouse
from resources.disk import full_disk
from resources.machine import SetupError
from resources.settings import SettingsError

# Dagster calls these beta or preview and would warn in each run. They are used on purpose; its version is pinned.
warnings.filterwarnings("ignore", "Parameter `backfill_policy`", dg.BetaWarning)
warnings.filterwarnings("ignore", "Function `PipesMessageReader.expected_writer_count`", dg.PreviewWarning)


def table_asset(table: Table) -> dg.AssetsDefinition:
    """The Dagster asset of a declared table."""

    @dg.asset(
        key=table.key,
        description=table.description or None,
        group_name=table.domain,
        owners=list(table.owners),
        kinds={"iceberg", "pyspark", *table.kinds},
        partitions_def=table.partitions,
        deps=list(table.deps),
        backfill_policy=dg.BackfillPolicy.single_run(),
        code_version=table.code_version,
        automation_condition=table.automation,
        retry_policy=table.retry_policy,
        metadata={
            "dagster/table_name": table.identifier,
            "dagster/column_schema": metadata.column_schema(table.schema),
            "partitioned_by": ", ".join(table.partitioned_by) or "nothing",
        },
        check_specs=[
            dg.AssetCheckSpec(
                AUDIT,
                asset=table.key,
                blocking=True,
                description="Checks the staged rows before anyone sees them: their partitions, required columns, "
                "unique keys, empty partitions, declared checks and bounds. If it fails, nothing is published.",
            )
        ],
    )
    def materialize(
        context: dg.AssetExecutionContext, lakehouse: dg.ResourceParam[Lakehouse]
    ) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult[Any]]:
        try:
            yield from Materialization(context, table, lakehouse).run()
        except (LakehouseError, SettingsError, SetupError) as error:
            raise dg.Failure(str(error), allow_retries=isinstance(error, PublishContended)) from error
        except Exception as error:
            full = full_disk(error, lakehouse.settings)  # libraries raise errors of all kinds for it
            if not (full or isinstance(error, OSError)):  # OSError: networks, object stores
                raise
            advice = "What was staged is kept; fix this and re-execute from failure"
            raise dg.Failure(f"table {table.identifier}: {full or error}. {advice}") from error

    return materialize
