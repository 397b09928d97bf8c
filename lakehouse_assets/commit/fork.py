"""Fork bases: metadata files that workers register privately, so that no two writers contend.

A fork is a private copy of the metadata of a table, its target. Nobody sees what a worker adds to it before the run
publishes it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile, ToOutputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from lakehouse_assets.errors import PublishRefused

FORK_PROPERTIES = {
    # A fork must not delete what it shares with the target: old metadata files, data files, manifests.
    "write.metadata.delete-after-commit.enabled": "false",
    "gc.enabled": "false",
    "commit.manifest-merge.enabled": "false",
    # A session's spark.wap.branch or spark.wap.id would divert rows from the fork's main branch.
    "write.wap.enabled": "false",
}
FORMAT_VERSION: Final = 2
"""PyIceberg 0.12 can't write manifests of version 3."""
# Part of the name of each fork base.
FORK_NAME = "-fork-"
# No slash or dot: a token becomes part of a file name.
TOKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class ForkBase:
    """The metadata file that forks begin with."""

    location: str
    snapshot_id: int | None
    """None if forks begin without rows."""


def write_fork_base(
    table: Table, token: str, snapshot: Snapshot | None = None, *, properties: Mapping[str, str] = MappingProxyType({})
) -> ForkBase:
    """Writes the metadata file that a run's workers fork from, with the snapshot's rows if any.

    Idempotent: a run's token has one file while all that staged files depend on in the target is the same; after a
    change it has another, so earlier receipts don't match. properties: set in the fork. Raises PublishRefused if the
    format version is not 2, ValueError if the token can't be in a file name.
    """
    metadata = all_optional(table.metadata)
    base = with_only(metadata.model_copy(update={"properties": {**metadata.properties, **properties}}), snapshot)
    identity = identity_of(base)
    name = fork_name(table, token, (*identity, *sorted(properties.items())))
    # In the target's metadata folder, because storage like S3 Tables allows no subfolders. "00000", as Iceberg's Java
    # catalogs log a stack trace if there is no version before the first dash; fork_name() begins with that dash.
    location = table.location_provider().new_metadata_location(f"00000{name}.metadata.json")
    there = written_base(table.io, location)
    # Another identity under this name: the hash in the name is short, so two identities may share it.
    if there is None or identity_of(there) != identity:
        ToOutputFile.table_metadata(base, table.io.new_output(location), overwrite=True)
    return ForkBase(location, base.current_snapshot_id)


def identity_of(metadata: TableMetadata) -> tuple[str | int, ...]:
    """Returns all that a staged file depends on in the target.

    Includes the fields: while a run evolves a schema, others may take its schema id and field ids.
    """
    ids = (metadata.current_schema_id, metadata.default_spec_id, metadata.default_sort_order_id, shape_text(metadata))
    head = (metadata.current_snapshot_id,) if metadata.current_snapshot_id else ()
    written = sorted(f"{name}={value}" for name, value in metadata.properties.items() if name.startswith("write."))
    return str(metadata.table_uuid), metadata.location, *ids, metadata.last_column_id, *head, *written


def is_fork(log: Iterable[str]) -> bool:
    """Whether a metadata log, as locations, begins with a fork base, as only a fork's does.

    FORK_PROPERTIES would not tell: earlier versions had others.
    """
    return any(FORK_NAME in location.rpartition("/")[2] for location in log)


def shape_text(metadata: TableMetadata) -> str:
    """Describes the columns, partitions and sort order."""
    fields = sorted((field.field_id, field.name, str(field.field_type)) for field in metadata.schema().fields)
    return f"{fields}; {metadata.spec()!r}; {metadata.sort_order()!r}"


def with_only(metadata: TableMetadata, snapshot: Snapshot | None) -> TableMetadata:
    """Returns a copy of the metadata with at most this snapshot.

    A writer on it finds nothing of the target's to delete.
    """
    main = snapshot and SnapshotRef.model_validate(
        {"snapshot-id": snapshot.snapshot_id, "type": SnapshotRefType.BRANCH}
    )
    return metadata.model_copy(
        update={
            "properties": {**metadata.properties, **FORK_PROPERTIES},
            "metadata_log": [],
            "snapshots": [snapshot.model_copy(update={"parent_snapshot_id": None})] if snapshot else [],
            "snapshot_log": [],
            "current_snapshot_id": snapshot.snapshot_id if snapshot else None,
            "refs": {MAIN_BRANCH: main} if main else {},
            "statistics": [],
            "partition_statistics": [],
            # Iceberg refuses a commit whose time is a minute before its metadata log's; a worker's clock may be slow.
            "last_updated_ms": 0,
        }
    )


def all_optional(metadata: TableMetadata) -> TableMetadata:
    """Returns a copy of the metadata without required columns.

    A writer would fail at the first null; the audit reports them all.
    """

    def optional(schema: Schema) -> Schema:
        fields = [field.model_copy(update={"required": False}) for field in schema.fields]
        # identifier_field_ids is empty because identifier fields must be required.
        return Schema(*fields, schema_id=schema.schema_id, identifier_field_ids=[])

    return metadata.model_copy(update={"schemas": [optional(schema) for schema in metadata.schemas]})


def refuse_other_versions(table: Table) -> None:
    """Raises PublishRefused unless the format version is FORMAT_VERSION."""
    if table.metadata.format_version != FORMAT_VERSION:
        raise PublishRefused(
            f"table {'.'.join(table.name())}: its format version is {table.metadata.format_version}, expected 2, the "
            "only version whose manifests PyIceberg 0.12 writes. If it is 1, set its property format-version to 2 "
            "(ALTER TABLE in any engine); otherwise create the table again"
        )


def fork_name(table: Table, token: str, identity: object) -> str:
    """Returns the middle of a fork's file names, which begins with a dash. Raises as write_fork_base().

    identity: what decides the fork's content; its hash is part of the name.
    """
    if not TOKEN.fullmatch(token):
        raise ValueError(f"the token {token!r} must be letters, digits, - and _: it becomes part of a file name")
    refuse_other_versions(table)
    return f"{FORK_NAME}{token}-{hashlib.sha256(repr(identity).encode()).hexdigest()[:8]}"


def written_base(io: FileIO, location: str) -> TableMetadata | None:
    """Reads a fork base; None if missing or incomplete: then no worker has used it."""
    try:
        return FromInputFile.table_metadata(io.new_input(location))
    except (FileNotFoundError, ValueError, ValidationError):
        return None
