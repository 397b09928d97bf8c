"""Finds the origin of metadata files that the catalog does not name.

The *line* of a table is the sequence of metadata files that led to the one that the catalog names.
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

from lakehouse_assets.commit.fork import is_fork
from lakehouse_assets.errors import UnreadableMetadata
from lakehouse_assets.maintenance.collect.listing import Listed
from lakehouse_assets.maintenance.collect.needed import PlaceSet, Reader, all_aliases

METADATA = (".metadata.json", ".metadata.json.gz")
NO_UUID = UUID(int=0)
"""For tables of format version 1 without one."""
GZIP = b"\x1f\x8b"


class MetadataOrigin(StrEnum):
    """The origin of a metadata file."""

    OTHER_TABLE = "of another table"
    FORK = "of a run's fork"
    PAST = "of the table's past"
    SIDE = "of one commit beside the table's own"
    """A failed or unfinished commit, or another catalog's first: all leave the same file."""
    OTHER_CATALOG = "of another catalog, for which the table went on"


@dataclass(frozen=True)
class LineageFacts:
    """A metadata file's history."""

    uuid: UUID
    updated_ms: int
    log: tuple[MetadataLogEntry, ...] = ()
    """Oldest first."""
    is_fork: bool = False


@dataclass
class Lineage:
    """The line of a table, as far back as it is known."""

    uuid: UUID
    oldest_ms: int
    _files: PlaceSet = field(default_factory=PlaceSet)

    @classmethod
    def read(cls, table: Table) -> Lineage:
        """Follows the metadata logs back, as far as files exist. Raises UnknownStorage and OSError."""
        metadata = table.metadata
        line = cls(metadata.table_uuid, metadata.last_updated_ms)
        line.add(table.metadata_location, metadata.last_updated_ms)
        new = list(metadata.metadata_log)
        while new:
            for entry in new:
                line.add(entry.metadata_file, entry.timestamp_ms)
            facts = (read_facts(table.io, entry.metadata_file) for entry in new)
            # The oldest file that still exists has the log that reaches back furthest.
            oldest = next((found for found in facts if found and found.uuid == line.uuid), None)
            new = [entry for entry in oldest.log if not line.has(entry.metadata_file)] if oldest else []
        return line

    def add(self, location: str, updated_ms: int) -> None:
        """Adds a metadata file to the line. Raises UnknownStorage."""
        self._files.add(location)
        self.oldest_ms = min(self.oldest_ms, updated_ms)

    def has(self, location: str) -> bool:
        """Whether the file is known to be on the line. Raises UnknownStorage."""
        return any(place in self._files for place in all_aliases(location))

    def standing(self, facts: LineageFacts, *, is_settled: bool) -> MetadataOrigin:
        """Decides the origin of a metadata file that is not on the line. Raises UnknownStorage.

        is_settled: after the file was written, a person confirmed that no other catalog has the table. A file on top of
        another one that the line lacks proves another catalog: a failed commit has no successor. A file older than the
        known line may be of the table's past.
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
"""Another catalog's metadata files, with their histories."""


def read_unnamed(table: Table, files: Iterable[Listed], reader: Reader, settled_ms: int) -> tuple[PlaceSet, Taken]:
    """Reads the metadata files that nobody names, except unreadable ones. Raises UnknownStorage and OSError.

    Returns places that somebody may need, and another catalog's metadata files. settled_ms: a person has
    confirmed that files until then are no other catalog's.
    """
    kept, taken = PlaceSet(), Taken()
    others = reader.beside(kept.add)
    line: Lineage | None = None
    for file in files:
        location = file.place.location
        # Reads files, so only if there is something to compare with the line.
        line = line or Lineage.read(table)
        facts = None if line.has(location) else read_facts(table.io, location)
        if facts is None:
            continue
        # Nobody needs what a FORK or a file of the PAST names: the other rules judge it.
        match line.standing(facts, is_settled=file.modified_ms <= settled_ms):
            case MetadataOrigin.OTHER_CATALOG:
                taken.append((location, facts))
            case MetadataOrigin.OTHER_TABLE | MetadataOrigin.SIDE:
                kept.add(location)
                _read_named(others, location)
    return kept, taken


def read_facts(io: FileIO, location: str) -> LineageFacts | None:
    """Reads a metadata file's history; None if it is gone, torn or foreign. Raises OSError."""
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
    """Notes what a file names, except its log: else each failed commit would keep the one before, without end."""
    try:
        metadata = FromInputFile.table_metadata(reader.io.new_input(location))
        reader.read(location, metadata.model_copy(update={"metadata_log": []}))
    except (FileNotFoundError, ValueError, ValidationError, UnreadableMetadata):
        return
