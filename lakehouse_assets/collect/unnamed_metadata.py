"""Reads the metadata files in a table's folders that the catalog does not name: whose they are, and what they need.

Whose a file is, is decided in lineage.py.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table

from lakehouse_assets.collect.lineage import Earlier, Lineage, LineageFacts, Standing, standing
from lakehouse_assets.collect.listing import Listed
from lakehouse_assets.collect.reachable import PlaceSet, Reader
from lakehouse_assets.commit.fork import is_fork
from lakehouse_assets.errors import UnreadableMetadata

METADATA = re.compile(r"\.metadata\.json(\.gz)?$")
NO_UUID = UUID(int=0)
"""The UUID of a table of format version 1 that has none."""
GZIP = b"\x1f\x8b"


def is_metadata(file: Listed) -> bool:
    """Tells whether the file's name is that of a table's metadata."""
    return METADATA.search(file.place.key) is not None


@dataclass
class Unnamed:
    """Holds what unnamed metadata files say."""

    kept: PlaceSet = field(default_factory=PlaceSet)
    """The metadata files that somebody may still need, and what they name."""
    taken: list[tuple[str, LineageFacts]] = field(default_factory=list)
    """The metadata files by which another catalog has the table."""


def read_unnamed(table: Table, files: Sequence[Listed], reader: Reader, settled_ms: int) -> Unnamed:
    """Looks at the metadata files in the table's folders that nobody names.

    reader: one that has read what the table names; that is not read again. settled_ms: by the storage's clock, what was
    written until then is no other catalog's. Whatever can't be read names nothing that anybody could have back. Raises
    OSError where the storage can't be read, UnknownStorage.
    """
    found = Unnamed()
    if not files:
        return found
    line = read_line(table)
    others = reader.beside(found.kept.add)
    for file in files:
        location = file.place.location
        facts = None if line.has(location) else read_facts(table.io, location)
        if facts is None:
            continue
        match standing(line, facts, is_settled=file.modified_ms <= settled_ms):
            case Standing.TAKEN:
                found.taken.append((location, facts))
            case Standing.OTHER_TABLE | Standing.SIDE:
                found.kept.add(location)
                _read_named(others, location)
    return found


def read_line(table: Table) -> Lineage:
    """Reads the table's line of commits, as far back as metadata files are there that know it.

    Each of these remembers some before it. Raises OSError where the storage can't be read, UnknownStorage.
    """
    metadata = table.metadata
    line = Lineage(metadata.table_uuid, metadata.last_updated_ms)
    line.add(table.metadata_location, metadata.last_updated_ms)
    earlier = [Earlier(entry.metadata_file, entry.timestamp_ms) for entry in metadata.metadata_log]
    for entry in earlier:
        line.add(*entry)
    while earlier:
        earlier = _extended(table.io, line, earlier)
    return line


def _extended(io: FileIO, line: Lineage, files: Iterable[Earlier]) -> list[Earlier]:
    """Adds to the line what the oldest of the files that still exists knows, and returns that, the oldest first."""
    for file in files:
        facts = read_facts(io, file.location)
        if facts and facts.uuid == line.uuid:
            new = [entry for entry in facts.log if not line.has(entry.location)]
            for entry in new:
                line.add(*entry)
            return new
    return []


def read_facts(io: FileIO, location: str) -> LineageFacts | None:
    """Reads what a metadata file says of its history; None where it is gone, torn or no metadata. Raises OSError."""
    try:
        with io.new_input(location).open() as stream:
            data = stream.read()
        fields = json.loads(gzip.decompress(data) if data.startswith(GZIP) else data)
        log = tuple(Earlier(of["metadata-file"], int(of["timestamp-ms"])) for of in fields.get("metadata-log") or ())
        uuid, updated_ms = UUID(fields.get("table-uuid") or NO_UUID.hex), int(fields["last-updated-ms"])
        return LineageFacts(uuid, updated_ms, log, is_fork(entry.location for entry in log))
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
