"""The job ``lakehouse_plan``: shows what the declarations would change on the lake, and changes nothing.

What differs is found in declared.py.
"""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import dagster as dg
from pydantic import Field
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.declare.table import Table
from lakehouse_assets.errors import LakehouseError, PublishRefused
from lakehouse_assets.run.chosen import chosen_tables
from lakehouse_assets.run.declared import COLUMNS, Row, differences
from lakehouse_assets.run.launchpad import own_fields
from lakehouse_assets.run.reporting import CODE_VERSION
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.run.shown_table import shown_table

PLAN = "lakehouse_plan"
LOOKED_AT = "tables_looked_at"
BATCH = 1000


class PlanConfig(dg.Config):
    """Config of the job: the tables to look at. The field shows in the launchpad."""

    tables: list[str] = Field([], description="Identifiers such as nyc.flights; none: all declared tables.")


def plan_job(tables: Sequence[Table]) -> dg.JobDefinition:
    """Returns the job over these tables."""

    @dg.op(name="plan", out=dg.Out(dg.Nothing))
    def plan(context: dg.OpExecutionContext, config: PlanConfig, lakehouse: dg.ResourceParam[Lakehouse]) -> None:
        chosen = chosen_tables(config.tables, tables)
        try:
            rows = list(_differences(context.instance, lakehouse.catalog(), chosen))
        except (LakehouseError, OSError) as error:  # OSError: networks, catalogs
            raise dg.Failure(str(error)) from error
        context.add_output_metadata({"plan": shown_table(COLUMNS, rows), LOOKED_AT: len(chosen)})

    @dg.job(
        name=PLAN,
        description="Shows what the declarations would change on the lake. Changes nothing.",
        config=own_fields("plan", PlanConfig),
    )
    def job() -> None:
        plan()

    return job


def _differences(instance: dg.DagsterInstance, catalog: Catalog, tables: Sequence[Table]) -> Iterator[Row]:
    for table in tables:
        try:
            found = _found(catalog, table)
        except Exception as error:  # each catalog has its own; one broken table must not hide the others
            yield (table.identifier, "table", "can be read", f"{error}", "fails")
            continue
        yield from differences(table, found, _made_by(instance, table))


def _found(catalog: Catalog, table: Table) -> TableMetadata | None:
    """Loads the table's metadata; None if there is no such table.

    Raises what catalogs raise, and PublishRefused for a table that is lost.
    """
    try:
        return catalog.load_table(table.identifier).metadata
    except (NoSuchTableError, NoSuchNamespaceError):
        from lakehouse_assets.commit.remains import refusal  # imports PyArrow, for half a second

        if refused := refusal(catalog, table):
            raise PublishRefused(refused) from None
        return None


def _made_by(instance: dg.DagsterInstance, table: Table) -> Mapping[str | None, str]:
    """Returns the code version of each partition's last materialization, by partition."""
    if table.partitions is None:
        version = instance.get_latest_materialization_code_versions([table.key])[table.key]
        return {None: version} if version else {}
    kind: Final = dg.DagsterEventType.ASSET_MATERIALIZATION
    ids = sorted(instance.get_latest_storage_id_by_partition(table.key, kind).values())
    batches = (ids[start : start + BATCH] for start in range(0, len(ids), BATCH))
    filters = (dg.AssetRecordsFilter(table.key, storage_ids=batch) for batch in batches)
    records = [record for f in filters for record in instance.fetch_materializations(f, limit=BATCH).records]
    made = (record.asset_materialization for record in records)
    return {m.partition: m.tags[CODE_VERSION] for m in made if m and m.tags and CODE_VERSION in m.tags}
