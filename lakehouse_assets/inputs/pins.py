"""Pins, the one version of each input that all workers of a run read; and tags that keep snapshots."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType

from lakehouse_assets.commit.fork import FORK_PROPERTIES
from lakehouse_assets.commit.publish import commit_persistently
from lakehouse_assets.commit.tokens import RUN_ID
from lakehouse_assets.environment.catalog import find_table, why_gone, with_retries
from lakehouse_assets.environment.catalog_in_spark import NOWHERE
from lakehouse_assets.errors import PublishContended, PublishRefused
from lakehouse_assets.storage.objects import at_once
from lakehouse_assets.wire.work import MAIN, Pin, table_and_ref

INPUTS = "lakehouse.inputs"
"""The summary entry that names a run's inputs."""
COPY = "input-{table}-{snapshot}.metadata.json"
"""The name of an input's metadata copy; its snapshot is 0 if the input has none."""
WRITABLE = 2
"""The latest format version whose metadata PyIceberg 0.12 writes."""
PLACES = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")
"""Properties that lead writers away from the location
(https://iceberg.apache.org/docs/latest/configuration/#write-properties)."""


def pin_inputs(
    catalog: Catalog, reader: str, deps: Collection[str], reads: Collection[str], io: FileIO, folder: str
) -> tuple[Pin, ...]:
    """Pins the tables that a run reads, and copies their metadata.

    reader: the run's own table. deps: names that are no table are left out. reads: maybe with ``.branch_<name>`` or
    ``.tag_<name>``. folder: for the copies. Raises PublishRefused if a table or ref of reads is missing, or a format
    version can't be pinned; also catalog and storage errors.
    """
    names = list(dict.fromkeys([*deps, *reads]))
    identifiers = list(dict.fromkeys(table_and_ref(name)[0] for name in names))
    # Each is loaded once, so that its branches and tags are pinned as of one time.
    tables = dict(zip(identifiers, at_once(partial(_found, catalog), identifiers), strict=True))

    def pinned(name: str) -> Pin | None:
        identifier, ref = table_and_ref(name)
        table = tables[identifier]
        # A table without a snapshot has no ref main.
        if table is not None and (ref == MAIN or ref in table.metadata.refs):
            _refuse_newer_versions(reader, table)
            return _write(table, name, io, folder)
        if name not in reads:
            return None
        missing = f"the table has no branch or tag {ref}" if table else f"the catalog has no table {identifier}"
        raise PublishRefused(f"table {reader}: reads names {name}, but {missing}. Nothing was staged or published")

    found = at_once(pinned, names)
    return tuple(pin for pin in found if pin is not None)


def _found(catalog: Catalog, identifier: str) -> IcebergTable | None:
    return with_retries(lambda: find_table(catalog, identifier))


def _refuse_newer_versions(reader: str, table: IcebergTable) -> None:
    name, version = ".".join(table.name()), table.metadata.format_version
    if version > WRITABLE:
        raise PublishRefused(
            f"table {reader}: it reads {name}, whose format version is {version}; an input may have at most "
            f"{WRITABLE}, because each run gets a copy of its metadata, and PyIceberg 0.12 can't write later versions. "
            f"Nothing was staged or published. Create {name} with format-version {WRITABLE}, or leave it out of deps "
            "and reads"
        )


def _write(table: IcebergTable, name: str, io: FileIO, folder: str) -> Pin:
    """Writes the copy of the table's metadata, and returns the pin that names it."""
    metadata, (identifier, ref) = table.metadata, table_and_ref(name)
    named = metadata.refs.get(ref)
    snapshot = metadata.snapshot_by_id(named.snapshot_id) if named else None
    snapshot_id = snapshot.snapshot_id if snapshot else None
    copy = f"{folder}/{COPY.format(table=identifier, snapshot=snapshot_id or 0)}"
    ToOutputFile.table_metadata(_unwritable(metadata), io.new_output(copy), overwrite=True)
    summary = snapshot.summary if snapshot else None
    at_ms = snapshot.timestamp_ms if snapshot else None
    return Pin(
        name=name,
        uuid=metadata.table_uuid,
        snapshot_id=snapshot_id,
        # A tag is read with its snapshot's schema, a branch with the table's
        # (https://iceberg.apache.org/docs/latest/branching/#schema-selection-with-branches-and-tags).
        schema_id=_schema_id(metadata, named, snapshot.schema_id if snapshot else None),
        metadata=copy,
        committed_at=datetime.fromtimestamp(at_ms / 1000, UTC) if at_ms is not None else None,
        run_id=summary[RUN_ID] if summary else None,
    )


def _schema_id(metadata: TableMetadata, ref: SnapshotRef | None, of_snapshot: int | None) -> int:
    is_tag = ref is not None and ref.snapshot_ref_type is SnapshotRefType.TAG
    return of_snapshot if is_tag and of_snapshot is not None else metadata.current_schema_id


def _unwritable(metadata: TableMetadata) -> TableMetadata:
    """Moves the copy to NOWHERE, where writes fail; elsewhere they would succeed, but only on the copy.

    NOWHERE has a scheme that Hadoop knows: with an unknown one, Spark could not even read.
    """
    properties = {name: value for name, value in metadata.properties.items() if name not in PLACES}
    return metadata.model_copy(
        update={"location": NOWHERE, "properties": {**properties, **FORK_PROPERTIES}, "metadata_log": []}
    )


def gone(pins: Sequence[Pin], catalog: Catalog) -> list[str]:
    """Returns a clause for each pin that can't be read any more."""
    found = ((pin, _found(catalog, pin.table)) for pin in pins)
    reasons = ((pin, why_gone(table.metadata if table else None, pin.uuid, pin.snapshot_id)) for pin, table in found)
    return [f"{pin.table} {why}" for pin, why in reasons if why]


def set_tags(catalog: Catalog, identifier: str, wanted: Callable[[TableMetadata], Mapping[str, int | None]]) -> None:
    """Sets and removes a table's tags, in at most one commit.

    wanted: returns the snapshot of each tag, None to remove it; its LakehouseError ends the attempts. Raises
    PublishContended if they run out, and catalog errors.
    """

    def attempt() -> bool:
        table = with_retries(lambda: catalog.load_table(identifier))
        refs, change, changes = table.metadata.refs, table.manage_snapshots(), 0
        for tag, snapshot_id in wanted(table.metadata).items():
            if snapshot_id is None and tag in refs:
                change, changes = change.remove_tag(tag), changes + 1
            elif snapshot_id is not None and (tag not in refs or refs[tag].snapshot_id != snapshot_id):
                change, changes = change.create_tag(snapshot_id, tag), changes + 1
        if changes:
            change.commit()
        return True

    def contended(problem: str, failure: Exception) -> PublishContended:
        return PublishContended(f"table {identifier}: setting its tags: {problem}; the last error was {failure!r}")

    # It does not matter whether a failed attempt landed: setting the tags again changes nothing.
    commit_persistently(identifier, "tag", attempt, lambda: None, contended)
