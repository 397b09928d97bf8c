"""The asset factory: a declared table becomes a Dagster asset of one op with a blocking audit check.
What the op does is materialization.py's."""

# No `from __future__ import annotations` here: Dagster compares the context's annotation itself.

import warnings
from collections.abc import Iterator

import dagster as dg

from lakehouse_assets.declare.table import Table
from lakehouse_assets.errors import LakehouseError, PublishContended
from lakehouse_assets.run import metadata
from lakehouse_assets.run.audit_check import AUDIT
from lakehouse_assets.run.materialization import Materialization
from resources.disk import full_disk
from resources.machine import SetupError
from resources.settings import SettingsError

# What Dagster calls beta or preview and is used on purpose; its version is pinned. Each run would say so anew.
warnings.filterwarnings("ignore", "Parameter `backfill_policy`", dg.BetaWarning)
warnings.filterwarnings("ignore", "Function `PipesMessageReader.expected_writer_count`", dg.PreviewWarning)

RESOURCE = "lakehouse"


def table_asset(table: Table) -> dg.AssetsDefinition:
    """The Dagster asset of a declared table."""

    @dg.asset(
        key=table.key,
        description=table.description or None,
        group_name=table.identifier.split(".")[0],
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
        required_resource_keys={RESOURCE},
        check_specs=[
            dg.AssetCheckSpec(
                AUDIT,
                asset=table.key,
                blocking=True,
                description="What was staged, before anyone sees it: partitions, required columns, unique keys, "
                "empty partitions. Red: nothing of the run was published.",
            )
        ],
    )
    def materialize(context: dg.AssetExecutionContext) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
        try:
            yield from Materialization(context, table, context.resources.lakehouse).run()
        except (LakehouseError, SettingsError, SetupError) as error:
            raise dg.Failure(str(error), allow_retries=isinstance(error, PublishContended)) from error
        except Exception as error:
            full = full_disk(error, context.resources.lakehouse.settings)  # which libraries make errors of all kinds of
            if not (full or isinstance(error, OSError)):  # networks, object stores
                raise
            kept = "What was staged is kept; mend it and re-execute from failure"
            raise dg.Failure(f"table {table.identifier}: {full or error}. {kept}") from error

    return materialize
