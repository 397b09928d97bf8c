"""Receipts: the files by which workers prove what they staged or rewrote."""

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
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Receipt(Durable):
    """The proof that a worker has staged a chunk, or rewritten files. It outlives the worker and its run."""

    table: str
    token: str
    chunk: int
    work: str
    """The hash Assignment.work or RewriteAssignment.work: the receipt counts only for the same work."""
    fork_base: str
    """The metadata file that the worker began with."""
    metadata_location: str
    """The metadata file that the worker's commit wrote; ``fork_base`` if a merge changes no row."""
    created_at: str
    """In ISO 8601, with a timezone."""
    worker: str
    """The host on which it ran, for people."""
    rewritten: Rewritten | None = None
    """None if rows were staged."""
    keys: tuple[str, ...] = ()
    """The chunk's partition keys; empty for a rewrite, or without partitions."""
    rows: int = 0
    """In the written files."""
    stage_seconds: float = 0.0
    """From the worker's start until its rows are staged and checked."""
    duplicates: tuple[str, ...] = ()
    """At most 5 examples of rows that break ``unique``."""
    base_snapshot_id: int | None = None
    """Assignment.base_snapshot_id."""
    merged: Merged | None = None
    """None if rows were appended."""
    failed_checks: tuple[FailedCheck, ...] = ()
    parts: Mapping[str, str] = field(default_factory=dict)
    """Assignment.parts: if the work differs, they show why."""
    files: tuple[OpenedFile, ...] = ()
    """Files of the drop zone that the step opened."""
    extensions: Mapping[str, Any] = field(default_factory=dict)
    """What StageHook.done() returned, by the extension's name."""

    @classmethod
    def _current(cls, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        if "read_to" in fields:  # until December 2026 a field of all receipts
            extensions = {"inputs": {"read_to": fields["read_to"]}}
            fields = {"extensions": extensions, **{name: of for name, of in fields.items() if name != "read_to"}}
        return fields

    @classmethod
    def of(cls, assignment: Assignment | RewriteAssignment, **done: Any) -> Receipt:
        """Returns this machine's receipt. done: the fields that the assignment lacks."""
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

    The file counts as missing, with a warning, if ``parse`` raises ValueError, TypeError, KeyError or AttributeError:
    then it is torn, foreign or of another version. Raises OSError if the storage can't be read.
    """
    try:
        with io.new_input(location).open() as stream:
            text = stream.read()
    except FileNotFoundError:
        return None
    try:
        return parse(text.decode())
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        logger.warning("%s can't be read and counts as missing: %s", location, error)
        return None
