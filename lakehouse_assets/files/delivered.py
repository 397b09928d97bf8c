"""Delivered files (those in the drop zone): how they are found, opened and unpacked."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import os
import posixpath
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, BinaryIO, Protocol
from urllib.parse import quote

import pyarrow as pa
from pyarrow import fs

from lakehouse_assets.environment.catalog import catalog_properties
from lakehouse_assets.environment.file_io import ClosingFileIO
from lakehouse_assets.environment.local_paths import path_of
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.step.window import BadPartitions, OpenedFile

S3 = re.compile(r"s3[an]?://(.+)", re.DOTALL)
KEY = "{key}"
PACKED = ("", ".gz", ".zst", ".bz2")
"""Suffixes of compressed files, and none; any may follow a file's pattern."""
BUFFER = 2**20
_sent: Mapping[str, str] = {}
OF_PARTITIONS = "partitions: "
"""Precedes the partitions in the text of a Spark task's error, for wrong_files_told()."""
NO_FILE = ("_", ".")
"""Prefixes of files that Hadoop does not treat as data, such as ``_SUCCESS``."""


class DropZoneError(BadPartitions):
    """Files of the drop zone are missing, or not what the step expects; the message names each."""


class NotUnpacked(ValueError):
    """A file is not compressed as its name says, or ends too early."""


@dataclass(frozen=True)
class DeliveredFile:
    """A file of the drop zone."""

    name: str
    """The partition key for which the step reads it."""
    location: str
    size: int
    """In bytes, as stored."""
    modified_ms: int
    """By the storage's clock, in epoch milliseconds."""

    @property
    def opened(self) -> OpenedFile:
        """Its entry in a receipt."""
        return OpenedFile(self.location, self.size, self.modified_ms)


def find_files(folder: str, names: Sequence[str], pattern: str, packed: Sequence[str] = PACKED) -> list[DeliveredFile]:
    """Returns the files of all names, in the names' order; a repeated name counts once.

    names: partition keys. pattern: ``{key}`` stands for each name, ``*`` in the last part for any letters. packed:
    suffixes that may follow. Raises DropZoneError for names without a file, or with two files that differ only in
    compression, and ValueError for any other pattern, or one by which a file belongs to two names.
    """
    # Without names, the empty one stands for all files of a pattern without {key}.
    names = [*dict.fromkeys(names)] or [""]
    parent, _, _ = pattern.rpartition("/")
    if (KEY in pattern) != (names != [""]) or "*" in parent:
        raise ValueError(
            f"files={pattern!r}: expected a pattern with {KEY} for the keys that are asked for, without it if there "
            "are none, and with * in its last part only"
        )
    folder = folder.rstrip("/")
    system, root = file_system(folder)
    root = root.rstrip("/")  # an Azure container's path ends with a slash
    # S3 has no folders that could be missing.
    if not S3.match(folder) and system.get_file_info(root).type == fs.FileType.NotFound:
        raise DropZoneError(f"the drop zone has no folder {folder}; let the source deliver it, then run again")
    list_once = cache(lambda place: system.get_file_info(fs.FileSelector(place, allow_not_found=True)))
    found, problems, owners = [], defaultdict(list), dict[str, str]()
    for name in names:
        place, _, _ = f"{root}/{pattern.replace(KEY, name)}".rpartition("/")
        wanted = _expression(root, pattern, name, packed)
        own, unpacked_as = list[fs.FileInfo](), defaultdict[str, list[str]](list)
        for file in sorted(list_once(place), key=lambda one: one.path):
            # A file that a pattern names exactly counts, whatever its first letter.
            is_meant = file.is_file and not ("*" in pattern and file.base_name.startswith(NO_FILE))
            if is_meant and (match := wanted.fullmatch(file.path)):
                own.append(file)
                if (owner := owners.setdefault(file.path, name)) != name:
                    raise ValueError(
                        f"files={pattern!r}: {file.path[len(root) + 1 :]} is a file of {owner} and of {name}, so its "
                        "rows would come twice; choose a pattern or file names that tell the two apart"
                    )
                unpacked_as[match["unpacked"]].append(file.base_name)
        for twins in unpacked_as.values():
            if len(twins) > 1:
                problems[f"is there {len(twins)} times ({', '.join(twins)})"].append(name)
        if not own:
            problems["is missing"].append(name)
        found += [
            DeliveredFile(name, f"{folder}{file.path[len(root) :]}", file.size, file.mtime_ns // 10**6) for file in own
        ]
    refuse(problems, folder, pattern, len(names))
    return found


@contextmanager
def sent_catalog(properties: Mapping[str, str]) -> Iterator[None]:
    """Opens S3 files with these properties of the catalog, too: those that the code location sent to this worker."""
    global _sent
    before, _sent = _sent, dict(properties)
    try:
        yield
    finally:
        _sent = before


def file_system(folder: str) -> tuple[fs.FileSystem, str]:
    """Returns a folder's file system, and its path there. S3 has the catalog's endpoint, region and credentials.

    folder: a path, or a URL whose names are those of the storage: ``%20`` is no blank.
    """
    if "://" not in folder or path_of(folder):
        return fs.LocalFileSystem(), os.path.abspath(path_of(folder) or folder)
    if found := S3.fullmatch(folder):
        properties = catalog_properties(read_settings(), _sent)
        return _s3(found[1].partition("/")[0], tuple(properties.items())), found[1]
    scheme, _, place = folder.partition("://")
    host, slash, inside = place.partition("/")
    system, path = fs.FileSystem.from_uri(f"{scheme}://{host}{slash}{quote(inside)}")
    return system, path


@cache
def _s3(bucket: str, properties: tuple[tuple[str, str], ...]) -> fs.FileSystem:
    return ClosingFileIO(dict(properties)).fs_by_scheme("s3", bucket)


@contextmanager
def unpacked(location: str) -> Iterator[BinaryIO]:
    """Opens a file's unpacked content. Reading it raises NotUnpacked, and OSError for storage."""
    system, path = file_system(location)
    with system.open_input_stream(path, compression=None) as source:
        ending = posixpath.splitext(path)[1]
        yield io.BufferedReader(_Content(_Raw(source), ending[1:] if ending in PACKED else ""), BUFFER)


def refuse(problems: Mapping[str, Sequence[str]], folder: str, pattern: str, asked: int) -> None:
    """Raises DropZoneError if there are problems.

    problems: problem → the names that have it. asked: how many files were looked for.
    """
    if problems:
        found = "; ".join(
            f"{', '.join(filter(None, names)) or pattern} {problem}" for problem, names in problems.items()
        )
        raise DropZoneError(
            f"{folder}/{pattern}: of {asked} files asked for {found}. Let the source deliver them, then run again",
            partitions=[name for names in problems.values() for name in names if name],
        )


def _expression(root: str, pattern: str, name: str, packed: Sequence[str]) -> re.Pattern[str]:
    """Returns an expression of a name's paths. Its group ``unpacked`` is the path without the suffix of compression."""
    meant = {KEY: re.escape(name), "*": "[^/]*"}
    parts = re.split(r"(\{key\}|\*)", pattern)
    whole = "".join(meant.get(part, re.escape(part)) for part in parts)
    suffixes = "|".join(map(re.escape, packed))
    return re.compile(f"(?P<unpacked>{re.escape(root)}/{whole})({suffixes})", re.DOTALL)


class _Raw(io.RawIOBase):
    """A file as stored; remembers that its storage failed, so that this does not count as damage."""

    def __init__(self, source: BinaryIO) -> None:
        self._source, self.failed = source, False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            read = self._source.read(len(buffer))
        except OSError:
            self.failed = True
            raise
        buffer[: len(read)] = read
        return len(read)


class _Bz2(io.RawIOBase):
    """Concatenated bzip2 streams. Python's own reader ends silently at anything else behind one."""

    def __init__(self, raw: _Raw) -> None:
        self._raw, self._stream = io.BufferedReader(raw, BUFFER), bz2.BZ2Decompressor()

    def read(self, size: int = -1) -> bytes:
        while True:
            packed = b""
            # After the end of a stream, only another stream may follow.
            if self._stream.eof:
                if not (packed := self._stream.unused_data or self._raw.read(BUFFER)):
                    return b""
                self._stream = bz2.BZ2Decompressor()
            elif self._stream.needs_input and not (packed := self._raw.read(BUFFER)):
                raise EOFError
            if found := self._stream.decompress(packed, size):
                return found


class _Content(io.RawIOBase):
    """A compressed file's content. Raises NotUnpacked; errors of storage pass through."""

    def __init__(self, raw: _Raw, kind: str) -> None:
        self._raw, self._kind = raw, kind
        self._content: Any = raw
        if kind == "gz":
            self._content = gzip.GzipFile(fileobj=io.BufferedReader(raw, BUFFER))
        elif kind == "bz2":
            self._content = _Bz2(raw)
        elif kind == "zst":
            self._content = pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            read = self._content.read(len(buffer))
            buffer[: len(read)] = read
            return len(read)
        except EOFError:
            raise NotUnpacked(f"ends too early for a file that is {self._kind}") from None
        except (OSError, zlib.error):
            if self._raw.failed:
                raise
            raise NotUnpacked(f"is no {self._kind}, or is damaged") from None


MOST_SHOWN = 20
"""The most problems that an error lists; reading goes on until so many are found."""
HEADS_AT_ONCE = 16
"""Files whose heads are read at the same time."""
TEXT_SHOWN = 80
"""The most characters of a value in a message."""


class WrongFile(ValueError):
    """A file is not what the step expects. problems: a sentence each, with the line if there is one."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class FileReader(Protocol):
    """Reads files of one format into rows. It is sent to Spark's Python workers."""

    @property
    def arrow(self) -> pa.Schema:
        """The rows' schema."""

    def head_problem(self, file: DeliveredFile) -> str | None:
        """Returns what is wrong with a file's head (header, first object or schema), or None."""

    def rows(self, file: DeliveredFile) -> Iterator[pa.RecordBatch]:
        """Yields a file's rows. Raises WrongFile, with the first MOST_SHOWN problems."""


@dataclass(frozen=True)
class ReadFiles:
    """Reads files by their numbers, in Spark's Python workers (__call__) or here (rows)."""

    reader: FileReader
    files: Sequence[DeliveredFile]
    catalog: Mapping[str, str] = field(default_factory=lambda: _sent)
    """As in sent_catalog(): Spark's Python workers have only their own environment."""

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the rows of the files whose numbers are in the batches.

        Raises as rows(), with the partitions in the text: Spark keeps only the text of a task's error.
        """
        try:
            with sent_catalog(self.catalog):
                yield from self.rows(number for batch in numbers for number in batch.column(0).to_pylist())
        except DropZoneError as error:
            raise DropZoneError(f"{error}\n{OF_PARTITIONS}{json.dumps(error.partitions)}") from None

    def rows(self, numbers: Iterable[int]) -> Iterator[pa.RecordBatch]:
        """Yields rows. Raises DropZoneError for the wrong values of all these files together, OSError for storage."""
        problems: dict[str, list[str]] = defaultdict(list)
        for number in numbers:
            file = self.files[number]
            try:
                for batch in self.reader.rows(file):
                    if not problems:  # else the file is read only to find its problems, too
                        yield batch
            except WrongFile as error:
                problems[file.name] += [f"{file.location}{problem}" for problem in error.problems]
            if sum(map(len, problems.values())) >= MOST_SHOWN:
                break
        if problems:
            found = [problem for own in problems.values() for problem in own]
            more = ["and more"] if len(found) >= MOST_SHOWN else []
            raise DropZoneError("\n".join([*found[:MOST_SHOWN], *more]), partitions=filter(None, problems))

    def head_problems(self) -> Mapping[str, Sequence[str]]:
        """Returns problem → names of the files that have it."""
        with ThreadPoolExecutor(HEADS_AT_ONCE) as pool:
            found = [*pool.map(self.reader.head_problem, self.files)]
        problems: dict[str, list[str]] = defaultdict(list)
        for file, problem in zip(self.files, found, strict=True):
            if problem:
                problems[problem].append(file.name)
        return problems


def shortened(text: str) -> str:
    """Returns a value as a message shows it: in quotes, and cut after TEXT_SHOWN characters."""
    return repr(text if len(text) <= TEXT_SHOWN else f"{text[:TEXT_SHOWN]}…")


def without_mark(encoding: str) -> str:
    """Says that a file lacks the byte order mark of its encoding."""
    return f"has no byte order mark; encoding='{encoding}-le' or '-be' reads it without one"


def check_encoding(encoding: str) -> None:
    """Raises ValueError unless Python has a text codec of that name."""
    try:
        "".encode(encoding)
    except LookupError:
        raise ValueError(f"encoding={encoding!r} is unknown; it is one of Python's, such as cp1252") from None
