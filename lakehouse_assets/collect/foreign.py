"""Files of a table that was in the same folders before, under another UUID: dropped, and another one created there.
Only metadata files that nobody names are read. Such files stay: whoever has the metadata can have the table back."""

from __future__ import annotations

import re
from collections.abc import Iterable
from uuid import UUID

from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO
from pyiceberg.serializers import FromInputFile

from lakehouse_assets.collect.listing import Listed
from lakehouse_assets.collect.reachable import PlaceSet, Reader
from lakehouse_assets.errors import UnreadableMetadata

METADATA = re.compile(r"\.metadata\.json(\.gz)?$")
# Writers put it near the beginning; where it is not, the whole file is read.
BEGINNING = 4096
TABLE_UUID = re.compile(rb'"table-uuid"\s*:\s*"([0-9a-fA-F-]{36})"')


def is_metadata(file: Listed) -> bool:
    """Whether the file's name is that of a table's metadata."""
    return METADATA.search(file.place.key) is not None


def foreign_files(io: FileIO, uuid: UUID, metadata_files: Iterable[Listed]) -> PlaceSet:
    """What metadata of other UUIDs names. metadata_files: those in the table's folders that nobody names.

    Whatever can't be read names nothing that anybody could have back. Raises OSError where the storage can't be read.
    """
    found = PlaceSet()
    reader = Reader(io, found.add)
    for file in metadata_files:
        if _is_foreign(io, file, uuid):
            found.add(file.place.location)
            try:
                reader.read(file.place.location, FromInputFile.table_metadata(io.new_input(file.place.location)))
            except (FileNotFoundError, ValueError, ValidationError, UnreadableMetadata):
                continue
    return found


def _is_foreign(io: FileIO, file: Listed, uuid: UUID) -> bool:
    try:
        with io.new_input(file.place.location).open() as stream:
            beginning = stream.read(BEGINNING)
        if found := TABLE_UUID.search(beginning):
            return UUID(found[1].decode()) != uuid
        return FromInputFile.table_metadata(io.new_input(file.place.location)).table_uuid != uuid
    except (FileNotFoundError, ValueError, ValidationError):
        return False
