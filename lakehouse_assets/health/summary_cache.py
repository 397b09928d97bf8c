"""Keeps summaries by manifest path, in one file for each table below the staging prefix: manifests never change.

Losing it costs time only, so whatever is wrong with it, it counts as empty. How it is used is in look.py.
"""

from __future__ import annotations

import json
import logging
import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from gzip import compress, decompress
from typing import Any
from uuid import UUID

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile

from lakehouse_assets.health.summaries import SizeLimits, Summary
from lakehouse_assets.wire.work import FORMAT_VERSION

logger = logging.getLogger(__name__)

FIELDS = tuple(Summary.__annotations__)
PARTITION = FIELDS.index("partition")
Lines = dict[tuple[str, int], str]
"""The summaries of each manifest as line() makes them, in a tenth of the objects' memory, by the manifest's path and
length. The path alone is not enough: a restored backup may have another manifest there."""


@dataclass(frozen=True)
class SummaryCache:
    """The kept summaries, in one file for each table.

    A file is gzip, whose checksum tells a torn file and one that two processes wrote at once. Its first line says what
    it is of: the table's UUID, the limits that fragments were counted by, and the fields of a summary.
    """

    io: FileIO
    """The FileIO that reads and writes the files."""
    prefix: str
    """The prefix below which the files lie; never under a table, where they would count as orphans."""

    def location(self, uuid: UUID) -> str:
        """Returns where a table's summaries lie. It does not end in .gz: PyArrow would compress the file once more."""
        return f"{self.prefix}/{uuid}.summaries"

    def read(self, uuid: UUID, limits: SizeLimits) -> Lines:
        """Returns what is kept of a table; nothing if the file is missing, torn, foreign or can't be read."""
        try:
            with self.io.new_input(self.location(uuid)).open() as stream:
                header, *lines = decompress(stream.read()).decode().split("\n")
            return {_manifest(line): line for line in lines} if header == _header(uuid, limits) else {}
        except FileNotFoundError:
            return {}
        except (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError) as error:
            logger.warning("%s can't be used, its table's manifests are read again: %s", self.location(uuid), error)
            return {}

    def write(self, uuid: UUID, limits: SizeLimits, lines: Iterable[str]) -> None:
        """Replaces what is kept of a table. Only warns if the storage can't be written: the next look takes longer."""
        content = compress("\n".join([_header(uuid, limits), *lines]).encode(), compresslevel=1)
        try:
            with self.io.new_output(self.location(uuid)).create(overwrite=True) as stream:
                stream.write(content)
        except OSError as error:
            logger.warning("%s can't be written, the next look reads all manifests: %s", self.location(uuid), error)


def line(manifest: ManifestFile, summaries: Iterable[Summary]) -> str:
    """Returns a manifest's path, length and summaries as a line of JSON."""
    return _ENCODER.encode([manifest.manifest_path, manifest.manifest_length, list(summaries)])


def summaries_in(kept: str) -> list[Summary]:
    """Returns the summaries of a line."""
    rows = _DECODER.decode(kept)[2]
    for row in rows:
        row[PARTITION] = tuple(row[PARTITION])
    return [Summary(*row) for row in rows]


def _manifest(kept: str) -> tuple[str, int]:
    """Returns the path and length of a line's manifest, without parsing the rest."""
    path, end = _DECODER.raw_decode(kept, 1)
    length, _ = _DECODER.raw_decode(kept, end + 1)
    return path, length


def _header(uuid: UUID, limits: SizeLimits) -> str:
    # The fields are part of it, so that code which counts something else reads the manifests again.
    return json.dumps({"version": FORMAT_VERSION, "table": str(uuid), "limits": limits, "fields": FIELDS})


def _tagged(value: Any) -> Mapping[str, str]:
    """Encodes partition values of types that JSON lacks. Raises TypeError for any other type."""
    match value:
        case Decimal() | UUID():
            return {type(value).__name__.lower(): str(value)}
        case bytes():
            return {"bytes": value.hex()}
    raise TypeError(f"a partition value of type {type(value).__name__}")


_READ: Mapping[str, Callable[[str], Any]] = {"decimal": Decimal, "uuid": UUID, "bytes": bytes.fromhex}


def _untagged(tagged: Mapping[str, str]) -> Any:
    for tag, text in tagged.items():
        if tag in _READ:
            return _READ[tag](text)
    raise ValueError(f"no partition value: {tagged}")


# NaN as one object, as partitions are counted by (summaries.py).
_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_DECODER = json.JSONDecoder(object_hook=_untagged, parse_constant=_FLOATS.__getitem__)
_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_tagged)
