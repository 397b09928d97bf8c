"""What a worker proves: receipts and what they say of the rows it staged or rewrote.

No Dagster and no Spark: both sides of the process border import it.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from lakehouse_assets.step.window import OpenedFile
from lakehouse_assets.wire.work import Assignment, Durable, Merged, RewriteAssignment, Rewritten

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

logger = logging.getLogger(__name__)

R = TypeVar("R")


@dataclass(frozen=True)
class FailedCheck:
    """A check that rows of a chunk fail."""

    name: str
    rows: int
    """How many rows fail it."""
    examples: tuple[str, ...]
    """Some of these rows, as text."""


@dataclass(frozen=True)
class Receipt(Durable):
    """The proof that a worker has done its work: staged a chunk, or rewritten files.

    It is durable: it outlives the worker and its run.
    """

    table: str
    token: str
    chunk: int
    work: str
    """Assignment.work, or RewriteAssignment.work."""
    fork_base: str
    """The metadata file that the worker registered."""
    metadata_location: str
    """The metadata file that its append, merge or rewrite wrote; ``fork_base`` where a merge changes no row."""
    created_at: str
    """With a timezone, in ISO 8601."""
    worker: str
    """The host that it ran on, for a person to read."""
    rewritten: Rewritten | None = None
    """What a rewrite did; None where rows were staged, which the other fields tell of."""
    keys: tuple[str, ...] = ()
    """The chunk's partition keys."""
    rows: int = 0
    """Rows in the files that were written."""
    stage_seconds: float = 0.0
    """From the worker's start until its rows are staged and checked."""
    duplicates: tuple[str, ...] = ()
    """At most 5 examples of rows that break ``unique``, each with its partition."""
    base_snapshot_id: int | None = None
    """The snapshot that the fork base was made from; None: without history."""
    merged: Merged | None = None
    """What a merge did; None where rows were appended."""
    failed_checks: tuple[FailedCheck, ...] = ()
    """Those of the table's ``checks`` that rows fail."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """Assignment.parts."""
    files: tuple[OpenedFile, ...] = ()
    """The files of the drop zone that the step opened by read_csv(), read_json() and read_parquet()."""
    read_to: Mapping[str, str] = field(default_factory=dict)
    """How far the step has read the changes of inputs, a Position as text by input."""

    @classmethod
    def of(cls, assignment: Assignment | RewriteAssignment, **done: Any) -> Receipt:
        """Returns the receipt of this machine for an assignment. done: the fields that the assignment does not give."""
        if isinstance(assignment, Assignment):
            done["keys"], done["parts"] = assignment.window.keys, assignment.parts
            done["base_snapshot_id"] = assignment.base_snapshot_id
        return cls(
            table=assignment.table,
            token=assignment.token,
            chunk=assignment.chunk,
            work=assignment.work,
            fork_base=assignment.fork_base,
            **{"created_at": datetime.now(UTC).isoformat(), "worker": socket.gethostname(), **done},
        )


def read_json(io: FileIO, location: str, parse: Callable[[str], R]) -> R | None:
    """Reads a durable file; None if it is missing.

    It also counts as missing, with a warning, if it is torn, foreign or of another version, which ``parse`` tells by a
    ValueError, TypeError, KeyError or AttributeError. Raises OSError when the storage can't be read.
    """
    try:
        with io.new_input(location).open() as stream:
            text = stream.read()
    except FileNotFoundError:
        return None
    try:
        return parse(text.decode())
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        logger.warning("%s can't be used and counts as missing: %s", location, error)
        return None
