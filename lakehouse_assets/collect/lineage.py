"""Decides whose a metadata file is that the catalog does not name: the table's past, a fork, another catalog's.

Such files in the table's folders are read here, and what they need is kept where somebody may need it.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from uuid import UUID

from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import MetadataLogEntry

from lakehouse_assets.collect.listing import Listed
from lakehouse_assets.collect.needed import PlaceSet, Reader, all_aliases
from lakehouse_assets.commit.fork import is_fork
from lakehouse_assets.errors import UnreadableMetadata

METADATA = (".metadata.json", ".metadata.json.gz")
"""The ends of the names of metadata files."""
NO_UUID = UUID(int=0)
"""The UUID of a table of format version 1 that has none."""
GZIP = b"\x1f\x8b"


class MetadataOrigin(StrEnum):
    """Says what a metadata file is that the catalog does not name."""

    OTHER_TABLE = "of another table"
    FORK = "of a run's fork"
    PAST = "of the table's past"
    SIDE = "of one commit beside the table's own"
    """The commit failed, is just being made, or is the first of another catalog: all leave the same file."""
    OTHER_CATALOG = "of another catalog, for which the table went on"


@dataclass(frozen=True)
class LineageFacts:
    """Holds what a metadata file says of its place in a table's history."""

    uuid: UUID
    updated_ms: int
    """The time when it was written, by its writer's clock."""
    log: tuple[MetadataLogEntry, ...] = ()
    """The metadata files before it, the oldest first, as far as it remembers them."""
    is_fork: bool = False
    """Whether the file is a fork's."""


@dataclass
class Lineage:
    """The commits that led to the metadata file that the catalog names."""

    uuid: UUID
    oldest_ms: int
    """The time when the first of them that is known was written."""
    _files: PlaceSet = field(default_factory=PlaceSet)

    @classmethod
    def read(cls, table: Table) -> Lineage:
        """Reads a table's line, as far back as metadata files are there that know it: each remembers some before it.

        Raises OSError where the storage can't be read, UnknownStorage.
        """
        metadata = table.metadata
        line = cls(metadata.table_uuid, metadata.last_updated_ms)
        line.add(table.metadata_location, metadata.last_updated_ms)
        new = list(metadata.metadata_log)
        while new:
            for entry in new:
                line.add(entry.metadata_file, entry.timestamp_ms)
            facts = (read_facts(table.io, entry.metadata_file) for entry in new)
            oldest = next((found for found in facts if found and found.uuid == line.uuid), None)
            new = [entry for entry in oldest.log if not line.has(entry.metadata_file)] if oldest else []
        return line

    def add(self, location: str, updated_ms: int) -> None:
        """Adds a metadata file to the line. Raises UnknownStorage."""
        self._files.add(location)
        self.oldest_ms = min(self.oldest_ms, updated_ms)

    def has(self, location: str) -> bool:
        """Tells whether the file is known to be on the line. Raises UnknownStorage."""
        return any(place in self._files for place in all_aliases(location))

    def standing(self, facts: LineageFacts, *, is_settled: bool) -> MetadataOrigin:
        """Decides what a metadata file is that is not on the line itself. Raises UnknownStorage.

        is_settled: whether a person has decided since it was written that no other catalog has the table.

        Whoever commits twice on top of what the line lacks has the table in another catalog. A file that is older than
        all that is known of the line may be of the table's past: its successors, which would tell, are gone.
        """
        if facts.uuid != self.uuid:
            return MetadataOrigin.OTHER_TABLE
        if facts.is_fork:
            return MetadataOrigin.FORK
        if is_settled:
            return MetadataOrigin.PAST
        if facts.log and self.has(facts.log[-1].metadata_file):
            return MetadataOrigin.SIDE
        return MetadataOrigin.PAST if facts.updated_ms <= self.oldest_ms else MetadataOrigin.OTHER_CATALOG


Taken = list[tuple[str, LineageFacts]]
"""The metadata files by which another catalog has the table."""


def read_unnamed(table: Table, files: Iterable[Listed], reader: Reader, settled_ms: int) -> tuple[PlaceSet, Taken]:
    """Looks at the metadata files in the table's folders that nobody names.

    Returns those that somebody may still need, with what they name, and those by which another catalog has the table.

    reader: one that has read what the table names; that is not read again. settled_ms: by the storage's clock, what was
    written until then is no other catalog's. Whatever can't be read names nothing that anybody could have back. Raises
    OSError where the storage can't be read, UnknownStorage.
    """
    kept, taken = PlaceSet(), Taken()
    others = reader.beside(kept.add)
    line: Lineage | None = None
    for file in files:
        location = file.place.location
        line = line or Lineage.read(table)
        facts = None if line.has(location) else read_facts(table.io, location)
        if facts is None:
            continue
        match line.standing(facts, is_settled=file.modified_ms <= settled_ms):
            case MetadataOrigin.OTHER_CATALOG:
                taken.append((location, facts))
            case MetadataOrigin.OTHER_TABLE | MetadataOrigin.SIDE:
                kept.add(location)
                _read_named(others, location)
    return kept, taken


def read_facts(io: FileIO, location: str) -> LineageFacts | None:
    """Reads what a metadata file says of its history; None where it is gone, torn or no metadata. Raises OSError."""
    try:
        with io.new_input(location).open() as stream:
            data = stream.read()
        fields = json.loads(gzip.decompress(data) if data.startswith(GZIP) else data)
        log = tuple(map(MetadataLogEntry.model_validate, fields.get("metadata-log") or ()))
        uuid, updated_ms = UUID(fields.get("table-uuid") or NO_UUID.hex), int(fields["last-updated-ms"])
        return LineageFacts(uuid, updated_ms, log, is_fork(entry.metadata_file for entry in log))
    except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError, EOFError, zlib.error):
        return None


def _read_named(reader: Reader, location: str) -> None:
    """Finds what the file needs for its rows.

    The metadata log does not count: each failed commit would keep a hundred earlier files, by which the line would be
    known so far back that the next one kept this one, without end.
    """
    try:
        metadata = FromInputFile.table_metadata(reader.io.new_input(location))
        reader.read(location, metadata.model_copy(update={"metadata_log": []}))
    except (FileNotFoundError, ValueError, ValidationError, UnreadableMetadata):
        return
