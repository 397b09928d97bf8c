"""Reads delivered files one after the other, and gathers what is wrong in them, so that a person sees it all at once.

Each format is a FileReader; which files, and where they are read, is decided elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from lakehouse_assets.files.delivered import DeliveredFile, DropZoneError

MOST_SHOWN = 20
HEADS_AT_ONCE = 16
TEXT_SHOWN = 80
"""Characters of a value that a message shows."""


class WrongFile(ValueError):
    """A file is not what the step expects. problems: a sentence each, with the line where there is one."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class FileReader(Protocol):
    """Reads files of one format into rows of one schema. It is sent to Spark's Python workers."""

    @property
    def arrow(self) -> pa.Schema:
        """The rows' schema."""

    def head_problem(self, file: DeliveredFile) -> str | None:
        """Says what of a file is wrong as far as its head tells; None if nothing is."""

    def rows(self, file: DeliveredFile) -> Iterator[pa.RecordBatch]:
        """Yields a file's rows. Raises WrongFile, with the first MOST_SHOWN problems."""


@dataclass(frozen=True)
class ReadFiles:
    """Reads files by their numbers, in Spark's Python workers or here."""

    reader: FileReader
    files: Sequence[DeliveredFile]

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the rows of the files whose numbers the batches have. Raises as rows() does."""
        return self.rows(number for batch in numbers for number in batch.column(0).to_pylist())

    def rows(self, numbers: Iterable[int]) -> Iterator[pa.RecordBatch]:
        """Yields the rows of these files. Raises DropZoneError for all wrong values of theirs, OSError for storage."""
        problems: dict[str, list[str]] = defaultdict(list)
        for number in numbers:
            file = self.files[number]
            try:
                for batch in self.reader.rows(file):
                    if not problems:
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
        """Returns each problem of the files' heads → the names of the files that have it."""
        with ThreadPoolExecutor(HEADS_AT_ONCE) as pool:
            found = [*pool.map(self.reader.head_problem, self.files)]
        problems: dict[str, list[str]] = defaultdict(list)
        for file, problem in zip(self.files, found, strict=True):
            if problem:
                problems[problem].append(file.name)
        return problems


def shortened(text: str) -> str:
    """Returns a value as a message shows it."""
    return repr(text if len(text) <= TEXT_SHOWN else f"{text[:TEXT_SHOWN]}…")


def check_encoding(encoding: str) -> None:
    """Raises ValueError unless Python has a codec of that name which is one of text."""
    try:
        "".encode(encoding)
    except LookupError:
        raise ValueError(f"encoding={encoding!r} is unknown; it is one of Python's, such as cp1252") from None
