"""The inputs of a run: pins and positions."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import dagster as dg
from dagster._core.definitions.data_version import INPUT_DATA_VERSION_TAG_PREFIX, INPUT_EVENT_POINTER_TAG_PREFIX
from dagster._core.execution.plan.execute_step import _build_data_version_tags, _get_input_provenance_data
from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.commit.commit_part import SummaryEntries
from lakehouse_assets.commit.pins import INPUTS, gone, pin_inputs, set_tags
from lakehouse_assets.commit.positions import READER, PositionUpdate, read_on
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import with_retries
from lakehouse_assets.errors import PublishRefused
from lakehouse_assets.keys_text import parts_of
from lakehouse_assets.run.jobs import FILE_COLUMNS, PINNED, READS, markdown_table, shown_table
from lakehouse_assets.run.plan import ANEW, RunPlan, plans_of
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.run.run_tags import RunTags
from lakehouse_assets.wire.receipts import Receipt
from lakehouse_assets.wire.work import MAIN, Pin, Position, ReadOn, table_and_ref

logger = logging.getLogger(__name__)

LONGEST = 4096
"""In characters: each load of a table reads the summaries of all its snapshots."""
UPSTREAM = (INPUT_DATA_VERSION_TAG_PREFIX, INPUT_EVENT_POINTER_TAG_PREFIX)
SHOWN = 50


def pins_of(lakehouse: Lakehouse, table: Table, token: str) -> tuple[Pin, ...]:
    """Pins the run's inputs. Raises as pin_inputs()."""
    if not (table.dep_names or table.reads):
        return ()
    journal = plans_of(lakehouse, table.identifier).journal(token)
    catalog = with_retries(lakehouse.catalog)
    return pin_inputs(catalog, table.identifier, table.dep_names, table.reads, journal.io, journal.folder)


def refuse_unpinned(lakehouse: Lakehouse, table: Table, plan: RunPlan) -> None:
    """Raises PublishRefused if a pinned snapshot of an input is gone."""
    if plan.inputs and (problems := gone(plan.inputs, with_retries(lakehouse.catalog))):
        raise PublishRefused(
            f"table {table.identifier}: the run {plan.token}, which this one resumes, can't read its inputs as they "
            f"were: {'; '.join(problems)}. Nothing was staged or published. {ANEW}"
        )


def upstream_tags(context: dg.AssetExecutionContext, key: dg.AssetKey) -> dict[str, str]:
    """Returns the tags that name the versions of the deps that Dagster knew as this run began.

    A resumed run reports its predecessor's, because it reads that one's pins.
    """
    step = context.get_step_execution_context()
    tags = _build_data_version_tags(dg.DataVersion(""), "", _get_input_provenance_data(key, step), False)
    return {name: tag for name, tag in tags.items() if name.startswith(UPSTREAM)}


def entry_of(pins: Sequence[Pin]) -> SummaryEntries:
    """Returns the entry of a snapshot's summary that names the run's inputs.

    It is ``{"nyc.flights": "<snapshot id>@<uuid>"}``, or beyond LONGEST only their number.
    """
    if not pins:
        return SummaryEntries({})
    text = json.dumps({pin.name: f"{pin.snapshot_id}@{pin.uuid}" for pin in pins}, separators=(",", ":"))
    named = text if len(text) <= LONGEST else f"{len(pins)} tables: see the materialization of this run"
    return SummaryEntries({INPUTS: named})


def ui_metadata(
    table: Table, pins: Sequence[Pin], as_changes: Collection[str], read_on: ReadOn | None
) -> Mapping[str, Any]:
    """Returns the metadata of a run's inputs. as_changes: inputs whose changes were read."""
    if not pins:
        return {}
    rows = (
        (
            pin.name,
            str(pin.snapshot_id or "empty"),
            f"{pin.committed_at:%Y-%m-%d %H:%M:%S} UTC" if pin.committed_at else "",
            f"[{pin.run_id[:8]}](/runs/{pin.run_id})" if pin.run_id else "",
            _read_since(pin.name, as_changes, read_on),
        )
        for pin in pins[:SHOWN]
    )
    more = f"\n\nand {len(pins) - SHOWN} more" if len(pins) > SHOWN else ""
    text = markdown_table(("table", "snapshot", "committed", "by run", "read"), rows) + more
    of_others = {pin.name: str(pin.snapshot_id) for pin in pins if pin.table not in table.dep_names}
    of_deps = {pin.name: str(pin.snapshot_id) for pin in pins if pin.name in table.dep_names}
    by_kind = {READS: of_others, PINNED: of_deps}
    return {"inputs": dg.MetadataValue.md(text)} | {kind: found for kind, found in by_kind.items() if found}


def pinned_in(made: dg.AssetMaterialization, metadata: TableMetadata | None) -> Mapping[str, str]:
    """Returns the snapshots that a materialization's run read of its deps; ``None`` of an empty one.

    Earlier versions of this library name them only in the commit: metadata is the materialized table's.
    """
    if PINNED in made.metadata:
        return cast("Mapping[str, str]", made.metadata[PINNED].value)
    own = made.metadata.get("snapshot_id")
    snapshot = metadata.snapshot_by_id(int(str(own.value))) if own and metadata else None
    entry = snapshot.summary[INPUTS] if snapshot and snapshot.summary else None
    if not (entry or "").startswith("{"):  # else it is only a number of tables
        return {}
    return {name: version.partition("@")[0] for name, version in json.loads(entry or "{}").items()}


def _read_since(name: str, as_changes: Collection[str], read_on: ReadOn | None) -> str:
    if name not in as_changes:
        return "as it was"
    since = read_on.positions.get(name) if read_on else None
    return f"changes since {since.partition('@')[0]}" if since else "all, as changes"


def files_by_key(chunks: Iterable[Receipt]) -> dict[str, dg.TableMetadataValue]:
    """Returns the drop zone files that each partition was made from.

    A file belongs to the partition whose key begins its name, else to all partitions of its chunk.
    """
    found: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    for receipt in chunks:
        keys = parts_of(receipt.keys)
        for file in receipt.files:
            name = file.path.rpartition("/")[2]
            of_file = [key for key in keys if key and name.startswith(f"{key}.")]
            for key in of_file or keys:
                modified = datetime.fromtimestamp(file.modified_ms / 1000, UTC)
                found[key].append((file.path, f"{file.size:,}", f"{modified:%Y-%m-%d %H:%M:%S} UTC"))
    return {key: shown_table(FILE_COLUMNS, files[:SHOWN]) for key, files in found.items()}


def read_on_of(table: Table, metadata: TableMetadata, tags: Mapping[str, str]) -> ReadOn | None:
    """Returns the positions of a table's inputs; None if its runs can't read on. Raises BadRunTag.

    Runs that replace rows would lose what earlier runs read, and each chunk of partitions would read all changes.
    """
    reads_all = RunTags.of(tags).read_all
    if table.write_mode.replaces or table.partitions is not None:
        return None
    return ReadOn() if reads_all else read_on(metadata)


def position_update(receipts: Iterable[Receipt], staged_on: TableMetadata) -> PositionUpdate:
    """Returns the run's update of positions. staged_on: the table at staging."""
    to = {name: position for receipt in receipts for name, position in receipt.read_to.items()}
    return PositionUpdate(to, read_on(staged_on)) if to else PositionUpdate()


def keep_unread(lakehouse: Lakehouse, table: str) -> None:
    """Tags the last snapshot read of each input, so that later ones don't expire. Raises nothing.

    It follows the commit: a run that dies in between leaves an older tag, which keeps more.
    """
    try:
        catalog = lakehouse.catalog()
        positions = read_on(with_retries(lambda: catalog.load_table(table)).metadata).positions
    except Exception as error:  # catalogs and storages have their own; the rows are published
        logger.warning("%s: what it has not read yet of its inputs may expire, as it can't be read: %r", table, error)
        return
    for name, text in positions.items():
        if ":" in name:  # a source, which is purged only up to what was moved
            continue
        position, (identifier, ref) = Position.parse(text), table_and_ref(name)
        tag = f"{READER}{table}" if ref == MAIN else f"{READER}{table}.{ref}"

        def wanted(found: TableMetadata, tag: str = tag, position: Position = position) -> dict[str, int | None]:
            is_there = found.table_uuid == position.uuid and found.snapshot_by_id(position.snapshot_id) is not None
            return {tag: position.snapshot_id} if is_there else {}

        try:
            set_tags(catalog, identifier, wanted)
        except Exception as error:  # catalogs and storages have their own; the rows are published
            logger.warning("%s: %s may expire before it is read, as it can't be tagged: %r", table, name, error)
