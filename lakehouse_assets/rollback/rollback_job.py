"""The job ``lakehouse_rollback``: shows what a rollback undoes, rolls back, and tells Dagster what partitions hold.

The commit is rollback.py's.
"""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster._core.definitions.data_version import DATA_VERSION_TAG
from pydantic import Field

from lakehouse_assets.declare.table import Table
from lakehouse_assets.drive.this_run import process_tag
from lakehouse_assets.environment.catalog import find_table, with_retries
from lakehouse_assets.errors import LakehouseError, RollbackRefused
from lakehouse_assets.keys_text import keys_text
from lakehouse_assets.run.in_flight import flights, location_of
from lakehouse_assets.run.jobs import chosen_tables, job_of, shown_table
from lakehouse_assets.run.outdated import BATCH, Partition, latest_made
from lakehouse_assets.run.resource import Lakehouse

if TYPE_CHECKING:
    from pyiceberg.table.snapshots import Snapshot

ROLLBACK = "lakehouse_rollback"
UNDONE, HEAD, TARGET, TOLD = "undone", "head", "target", "partitions_changed"
"""The metadata of the job's output: what is undone, main's snapshot before and after, which partitions hold others."""
ROLLED_BACK_TO = "rolled_back_to"
"""The metadata that tells what a rollback has logged from what runs have made: main's snapshot then."""
CLOCKS_APART = 3600
"""How many seconds the clock of a commit may be ahead of Dagster's: what is logged later names its snapshot."""
BACK = "back: "
"""What stands before the operation of a snapshot that returns."""
COLUMNS = ("snapshot", "committed", "by run", "operation", "rows added", "rows removed", "partitions")


class RollbackConfig(dg.Config):
    """Says which table goes back to what. Shows in the launchpad."""

    # They have defaults, as the launchpad fills in only fields that have one. The job refuses them.
    table: str = Field("", description="Required: the identifier of the table, such as nyc.flights.")
    to: str = Field(
        "",
        description="Required: the id of a snapshot; a time in ISO 8601, for the snapshot that was current then; or "
        "release:12, for the one in a release.",
    )
    head: str = Field(
        "", description="The snapshot that must be main's: nothing is done if others have committed since."
    )
    dry_run: bool = Field(True, description="true: only show what would be undone. false: roll back.")


def rollback_job(tables: Sequence[Table]) -> dg.JobDefinition:
    """Returns the job over these tables."""

    @dg.op(name="rollback", out=dg.Out(dg.Nothing))
    def rollback(
        context: dg.OpExecutionContext, config: RollbackConfig, lakehouse: dg.ResourceParam[Lakehouse]
    ) -> None:
        context.instance.add_run_tags(context.run_id, process_tag())
        if not (config.table and config.to):
            raise dg.Failure("name a table, and what to roll it back to", allow_retries=False)
        (table,) = chosen_tables([config.table], tables)
        try:
            context.add_output_metadata(_rollback(context, config, table, lakehouse))
        except (LakehouseError, OSError) as error:  # OSError: networks, catalogs
            raise dg.Failure(str(error), allow_retries=False) from error

    return job_of(rollback, RollbackConfig, ROLLBACK, "Rolls a table back to one of its snapshots.")


def _rollback(
    context: dg.OpExecutionContext, config: RollbackConfig, table: Table, lakehouse: Lakehouse
) -> dict[str, Any]:
    from lakehouse_assets.rollback.rollback import Rollback, roll_back, snapshot_of, source_problem

    catalog = lakehouse.catalog()
    found = with_retries(lambda: find_table(catalog, table.identifier))
    if found is None or (head := found.current_snapshot()) is None:
        raise RollbackRefused(f"table {table.identifier}: there is nothing to roll back, it has no snapshot")
    rollback = Rollback(found.metadata, snapshot_of(table.identifier, found.metadata, config.to, catalog))
    target = rollback.target.snapshot_id
    if config.head not in ("", str(head.snapshot_id)) and head.snapshot_id != target:
        raise RollbackRefused(
            f"table {table.identifier}: expected snapshot {config.head} as main's, found {head.snapshot_id}: another "
            "commit came in between. Nothing was changed; look at it again"
        )
    _refuse_meanwhile(context, table)
    if problem := source_problem(table, rollback.after):
        raise RollbackRefused(
            f"table {table.identifier}: after the rollback no run could move the rows again that it takes away: "
            f"{problem}. Nothing was changed"
        )
    keys = _by_snapshot(context.instance, table, [*rollback.undone, *rollback.restored])
    rows = [*_rows(rollback.undone, keys), *_rows(rollback.restored, keys, BACK)]
    changed = {key for of in keys.values() for key in of}
    events = list(_events(context.instance, table, changed, rollback.elsewhere, target))
    if not config.dry_run:
        roll_back(catalog, table.identifier, target, head.snapshot_id)
        for event in events:
            context.log_event(event)
    return {
        UNDONE: shown_table(COLUMNS, rows),
        HEAD: str(head.snapshot_id),
        TARGET: str(target),
        TOLD: keys_text([event.partition or "" for event in events]) if events else "none",
    }


def _refuse_meanwhile(context: dg.OpExecutionContext, table: Table) -> None:
    """Raises RollbackRefused while runs write the table: they would publish on what is about to be undone."""
    writing = flights(context.instance, [table], location_of(context.run)).get(table.identifier, [])
    if writing:
        names = ", ".join(flight.name for flight in writing)
        raise RollbackRefused(
            f"table {table.identifier}: {names} writes it. Wait for its end, or terminate it. Nothing was changed"
        )


def _snapshot(made: dg.AssetMaterialization) -> int:
    """Returns the snapshot that a materialization names; 0, which is no snapshot's id, if it names none."""
    named = made.metadata.get("snapshot_id")
    text = str(named.value) if named else ""
    return int(text) if text.isdecimal() else 0


def _by_snapshot(
    instance: dg.DagsterInstance, table: Table, snapshots: Sequence["Snapshot"]
) -> Mapping[int, Sequence[Partition]]:
    """Returns the partitions that runs have made in each of these snapshots."""
    if not snapshots:
        return {}
    since = min(snapshot.timestamp_ms for snapshot in snapshots) / 1000 - CLOCKS_APART
    ids, found = {snapshot.snapshot_id for snapshot in snapshots}, defaultdict[int, list[Partition]](list)
    for made in _materializations(instance, dg.AssetRecordsFilter(table.key, after_timestamp=since)):
        if ROLLED_BACK_TO not in made.metadata and (snapshot := _snapshot(made)) in ids:
            found[snapshot].append(made.partition)
    return found


def _rows(
    snapshots: Sequence["Snapshot"], keys: Mapping[int, Sequence[Partition]], prefix: str = ""
) -> Iterator[Sequence[str]]:
    """Yields a row for each snapshot: what it did, by which run, and to which partitions."""
    from lakehouse_assets.commit.tokens import SPANS, TOKEN
    from lakehouse_assets.rollback.rollback import time_text

    for snapshot in snapshots:
        summary = snapshot.summary
        said = summary.additional_properties if summary else {}
        made = keys.get(snapshot.snapshot_id)
        yield (
            str(snapshot.snapshot_id),
            time_text(snapshot.timestamp_ms),
            said.get(TOKEN, "").partition(SPANS)[0] or "another client's",
            f"{prefix}{summary.operation.value if summary else 'unknown'}",
            said.get("added-records", "0"),
            said.get("deleted-records", "0"),
            keys_text(sorted(key or "" for key in made)) if made else "",
        )


def _events(
    instance: dg.DagsterInstance, table: Table, changed: Collection[Partition], elsewhere: Collection[int], target: int
) -> Iterator[dg.AssetMaterialization]:
    """Yields what partitions hold after the rollback, if Dagster shows otherwise: what a run has made, else nothing.

    The tags are those of then, too: a partition counts as made of the inputs that it had, so that automation and
    `lakehouse plan` see what is outdated. To downstream assets it is a new version.

    changed: the partitions that are undone or return; others are looked at as well, since another client may have
    rolled back before. elsewhere: the snapshots that are not in main's history then.
    """
    spec = dg.AssetSpec(table.key, partitions_def=table.partitions)
    latest = latest_made(instance, dg.Definitions(assets=[spec]).resolve_asset_graph(), table.key)
    wanted = {*changed, *(key for key, made in latest.items() if _snapshot(made) in elsewhere)}
    held: dict[Partition, dg.AssetMaterialization] = {}
    of_wanted = sorted(key for key in wanted if key is not None)
    for made in _materializations(instance, dg.AssetRecordsFilter(table.key, asset_partitions=of_wanted or None)):
        if len(held) == len(wanted):
            break
        if made.partition in wanted and ROLLED_BACK_TO not in made.metadata and _snapshot(made) not in elsewhere:
            held.setdefault(made.partition, made)
    for key in sorted(wanted, key=str):
        found = held.get(key)
        if found and _snapshot(found) == _snapshot(latest[key]):
            continue
        empty: Mapping[str, Any] = {"snapshot_id": str(target), "dagster/partition_row_count": 0}
        yield dg.AssetMaterialization(
            table.key,
            partition=key,
            metadata={**(found.metadata if found else empty), ROLLED_BACK_TO: str(target)},
            tags=found.tags if found else {DATA_VERSION_TAG: f"rolled-back-to-{target}"},
        )


def _materializations(instance: dg.DagsterInstance, wanted: dg.AssetRecordsFilter) -> Iterator[dg.AssetMaterialization]:
    """Yields materializations, the newest first."""
    cursor, has_more = None, True
    while has_more:
        found = instance.fetch_materializations(wanted, limit=BATCH, cursor=cursor)
        yield from (made for record in found.records if (made := record.asset_materialization))
        cursor, has_more = found.cursor, found.has_more
