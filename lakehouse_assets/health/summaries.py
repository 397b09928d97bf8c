"""Summaries of manifests, and their cache.

Losing the cache costs time only, so a cache that is broken in any way counts as empty.
"""

from __future__ import annotations

import json
import logging
import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from gzip import compress, decompress
from typing import Any, NamedTuple
from uuid import UUID

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFileContent, ManifestEntry, ManifestFile

from lakehouse_assets.commit.deletes import sequence
from lakehouse_assets.commit.manifests import values_of
from lakehouse_assets.wire.work import FORMAT_VERSION


class LiveFile(NamedTuple):
    """A file that a manifest lists as added or existing."""

    content: DataFileContent
    partition: tuple[Any, ...]
    rows: int
    size: int
    """The size in bytes."""
    sequence: int
    """The data sequence number."""

    @classmethod
    def of(cls, entry: ManifestEntry) -> LiveFile:
        """Returns what a summary counts of an entry."""
        file = entry.data_file
        # All NaNs are one object: another one is unequal to it, and would be a partition of its own.
        partition = tuple([math.nan if value != value else value for value in values_of(file.partition)])
        content = DataFileContent(file.content)  # a number where the manifest is of version 1
        return cls(content, partition, file.record_count, file.file_size_in_bytes, sequence(entry))


class SizeLimits(NamedTuple):
    """A file of at most ``fragment`` bytes is a fragment, another one of at most ``undersized`` bytes undersized."""

    fragment: int
    undersized: int


class Summary(NamedTuple):
    """The live files of one kind that one manifest lists in one partition.

    Sums of summaries are exact, since a live file is in exactly one manifest of a snapshot.
    """

    spec_id: int
    """The id of the partition's spec."""
    content: int
    """The kind of file, the value of a DataFileContent."""
    partition: tuple[Any, ...]
    """The partition's values."""
    files: int
    size: int
    """The bytes of all files."""
    rows: int
    fragments: int
    fragment_size: int
    """The bytes of the fragments."""
    undersized: int
    """How many files are undersized; a fragment does not count as one."""
    undersized_size: int
    """The bytes of the undersized files."""
    oldest: int
    """The least data sequence number."""
    newest: int
    """The greatest data sequence number."""


def summarize(spec_id: int, files: Iterable[LiveFile], limits: SizeLimits) -> list[Summary]:
    """Returns the summaries of a manifest's live files, which are all of the manifest's spec."""
    groups: dict[tuple[DataFileContent, tuple[Any, ...]], list[LiveFile]] = defaultdict(list)
    for file in files:
        groups[file.content, file.partition].append(file)
    return [_summary(spec_id, group, limits) for group in groups.values()]


def _summary(spec_id: int, files: Sequence[LiveFile], limits: SizeLimits) -> Summary:
    sizes, sequences = [file.size for file in files], [file.sequence for file in files]
    fragments = [size for size in sizes if size <= limits.fragment]
    undersized = [size for size in sizes if limits.fragment < size <= limits.undersized]
    return Summary(
        spec_id=spec_id,
        content=files[0].content.value,
        partition=files[0].partition,
        files=len(files),
        size=sum(sizes),
        rows=sum(file.rows for file in files),
        fragments=len(fragments),
        fragment_size=sum(fragments),
        undersized=len(undersized),
        undersized_size=sum(undersized),
        oldest=min(sequences),
        newest=max(sequences),
    )


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


# NaN as one object, as partitions are counted by.
_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_DECODER = json.JSONDecoder(object_hook=_untagged, parse_constant=_FLOATS.__getitem__)
_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_tagged)
