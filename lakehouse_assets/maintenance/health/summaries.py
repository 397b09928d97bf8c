"""Summaries of manifests, and their cache, whose loss only costs time: a broken one counts as empty."""

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

logger = logging.getLogger(__name__)

FORMAT = 1


class LiveFile(NamedTuple):
    """A file listed as added or existing."""

    content: DataFileContent
    partition: tuple[Any, ...]
    rows: int
    size: int
    sequence: int

    @classmethod
    def of(cls, entry: ManifestEntry) -> LiveFile:
        """Returns what a summary counts."""
        file = entry.data_file
        content = DataFileContent(file.content)  # a number in a manifest of version 1
        return cls(content, values_of(file.partition), file.record_count, file.file_size_in_bytes, sequence(entry))


class SizeLimits(NamedTuple):
    """Files of up to ``fragment`` bytes are fragments, else up to ``undersized`` bytes undersized."""

    fragment: int
    undersized: int


class Summary(NamedTuple):
    """The live files of one kind in one manifest and one partition.

    Sums are exact: a live file is in only one manifest of a snapshot.
    """

    spec_id: int
    content: int
    """A DataFileContent's value."""
    partition: tuple[Any, ...]
    files: int
    size: int
    rows: int
    fragments: int
    fragment_size: int
    undersized: int
    """Without fragments."""
    undersized_size: int
    oldest: int
    newest: int
    """The greatest data sequence number; ``oldest`` is the least."""


def summarize(spec_id: int, files: Iterable[LiveFile], limits: SizeLimits) -> list[Summary]:
    """Returns the summaries of a manifest."""
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


FIELDS = tuple(Summary.__annotations__)
PARTITION = FIELDS.index("partition")
Lines = dict[tuple[str, int], str]
"""By manifest path and length, as a restored backup may reuse a path. Lines take a tenth of the objects' memory."""


@dataclass(frozen=True)
class SummaryCache:
    """Summaries of manifests, in one gzip file by table.

    gzip's checksum detects torn files and concurrent writes; the first line detects other limits or fields.
    """

    io: FileIO
    prefix: str
    """Outside all tables: inside one, the files would count as orphans."""

    def location(self, uuid: UUID) -> str:
        """Returns a table's file, without .gz, for which PyArrow would compress again."""
        return f"{self.prefix}/{uuid}.summaries"

    def read(self, uuid: UUID, limits: SizeLimits) -> Lines:
        """Returns a table's lines; none if unusable."""
        try:
            with self.io.new_input(self.location(uuid)).open() as stream:
                header, *lines = decompress(stream.read()).decode().split("\n")
            return {_manifest(text): text for text in lines} if header == _header(uuid, limits) else {}
        except FileNotFoundError:
            return {}
        except (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError) as error:
            logger.warning("%s can't be read, so its table's manifests are read again: %s", self.location(uuid), error)
            return {}

    def write(self, uuid: UUID, limits: SizeLimits, lines: Iterable[str]) -> None:
        """Replaces a table's lines. Only warns if that fails."""
        content = compress("\n".join([_header(uuid, limits), *lines]).encode(), compresslevel=1)
        try:
            with self.io.new_output(self.location(uuid)).create(overwrite=True) as stream:
                stream.write(content)
        except OSError as error:
            logger.warning("%s can't be written, so the next look reads all manifests: %s", self.location(uuid), error)


def line(manifest: ManifestFile, summaries: Iterable[Summary]) -> str:
    """Encodes a manifest's summaries as a line of the cache."""
    return _ENCODER.encode([manifest.manifest_path, manifest.manifest_length, list(summaries)])


def summaries_in(kept: str) -> list[Summary]:
    """Decodes the summaries in a line."""
    rows = _DECODER.decode(kept)[2]
    for row in rows:
        row[PARTITION] = tuple(row[PARTITION])
    return [Summary(*row) for row in rows]


def _manifest(kept: str) -> tuple[str, int]:
    # Decodes only the line's first two elements: the path after the bracket, the length after the comma.
    path, end = _DECODER.raw_decode(kept, 1)
    length, _ = _DECODER.raw_decode(kept, end + 1)
    return path, length


def _header(uuid: UUID, limits: SizeLimits) -> str:
    # With the fields, so that code which counts other fields reads the manifests again.
    return json.dumps({"version": FORMAT, "table": str(uuid), "limits": limits, "fields": FIELDS})


def _tagged(value: Any) -> Mapping[str, str]:
    match value:
        case Decimal() | UUID():
            return {type(value).__name__.lower(): str(value)}
        case bytes():
            return {"bytes": value.hex()}
    raise TypeError(f"a partition value of type {type(value).__name__}")


_BY_TAG: Mapping[str, Callable[[str], Any]] = {"decimal": Decimal, "uuid": UUID, "bytes": bytes.fromhex}


def _untagged(tagged: Mapping[str, str]) -> Any:
    for tag, text in tagged.items():
        if tag in _BY_TAG:
            return _BY_TAG[tag](text)
    raise ValueError(f"no partition value: {tagged}")


# One object for all NaNs, as in read_manifests(): two would be unequal, and each a partition of its own.
_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_DECODER = json.JSONDecoder(object_hook=_untagged, parse_constant=_FLOATS.__getitem__)
_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_tagged)
