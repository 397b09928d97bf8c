"""What a worker gets: assignments, and the versions of tables that it reads."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self
from uuid import UUID

from lakehouse_assets.environment.machine import LIBRARY, VERSION
from lakehouse_assets.errors import DeclarationError
from lakehouse_assets.step.window import Window

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pyiceberg.io import FileIO


def encode(kind: Any, value: Any) -> Any:
    """Returns a value of this type as JSON data; datetimes in ISO 8601."""
    return _codec(kind).dump_python(value, mode="json")


def decode(kind: Any, data: Any) -> Any:
    """Reads JSON data as a value of this type. Raises ValueError for data of another."""
    return _codec(kind).validate_python(data)


@cache
def _codec(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # here: most processes never read or write one

    return TypeAdapter(kind)


class Durable:
    """Base of frozen dataclasses that are stored as JSON with a version."""

    FORMAT: ClassVar[int] = 1
    """The version of the fields."""
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    def to_fields(self) -> dict[str, Any]:
        """Returns a JSON object; datetimes in ISO 8601."""
        return {"version": self.FORMAT, **encode(type(self), self)}

    def to_json(self) -> str:
        """Returns to_fields() as text."""
        return json.dumps(self.to_fields())

    def write(self, io: FileIO, location: str) -> None:
        """Writes to_json() in one piece, over an earlier file."""
        with io.new_output(location).create(overwrite=True) as stream:
            stream.write(self.to_json().encode())

    @classmethod
    def from_json(cls, data: str | Mapping[str, Any]) -> Self:
        """Reads a JSON object, or its text. Raises ValueError for another version, other fields or torn text."""
        fields = json.loads(data) if isinstance(data, str) else data
        if not isinstance(fields, Mapping):
            raise ValueError("this is not a JSON object")
        fields = cls._current(fields)
        if (version := fields.get("version")) != cls.FORMAT:
            raise ValueError(
                f"this has version {version!r}, but this code reads version {cls.FORMAT}: deploy the code location and "
                "the workers from one build"
            )
        found: Self = decode(cls, {name: of for name, of in fields.items() if name != "version"})
        return found

    @classmethod
    def _current(cls, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns stored fields, perhaps of an older release, in the form that this code reads. Raises ValueError."""
        return fields


MAIN = "main"
"""The main branch. PyIceberg's own constant takes half a second to import."""


REF = re.compile(r"(\w+(?:\.\w+)+?)\.(?:branch|tag)_(.+)")
"""A table's identifier, and a branch or tag as Spark names it
(https://iceberg.apache.org/docs/latest/spark-queries/#time-travel)."""


def table_and_ref(name: str) -> tuple[str, str]:
    """Returns a table's identifier, and the branch or tag in its name, or MAIN."""
    found = REF.fullmatch(name)
    return (found[1], found[2]) if found else (name, MAIN)


@dataclass(frozen=True)
class Pin:
    """The version of a table that a run reads, fixed when the run is planned."""

    name: str
    """The name in Spark's catalog ``lake``: the identifier, perhaps with a branch or tag."""
    uuid: UUID
    """A table that is created again gets another."""
    snapshot_id: int | None
    """None for a table that has none, and is read as empty."""
    schema_id: int
    metadata: str
    """The run's own copy of the metadata file, to which no commit can be made."""
    committed_at: datetime | None = None
    """By the committer's clock."""
    run_id: str | None = None
    """None if no run of ours committed it."""

    @property
    def table(self) -> str:
        """The table's Iceberg identifier."""
        return table_and_ref(self.name)[0]

    @property
    def ref(self) -> str:
        """The branch or tag that named the snapshot."""
        return table_and_ref(self.name)[1]

    @property
    def version(self) -> tuple[str, str, int | None, int]:
        """The parts that decide which rows a step reads."""
        return self.name, str(self.uuid), self.snapshot_id, self.schema_id


EMPTY = 0
"""Stands for the snapshot of an input that had none: no snapshot has this id."""


class Position(NamedTuple):
    """The version of an input up to which its changes were read."""

    snapshot_id: int
    """EMPTY if the input had none."""
    uuid: UUID
    """Snapshot ids of a table that was created again mean nothing."""

    def __str__(self) -> str:
        return f"{self.snapshot_id}@{self.uuid}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Reads the text of str(). Raises ValueError for another text."""
        snapshot_id, _, uuid = text.partition("@")
        return cls(int(snapshot_id), UUID(uuid))


@dataclass(frozen=True)
class ReadOn:
    """How far each input was read by the runs whose rows are in the table."""

    positions: Mapping[str, str] = field(default_factory=dict)
    """Input → Position; a missing input is read from its beginning."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Input → why its position is unknown, in a clause."""

    def text(self, name: str) -> str:
        """Returns an input's position as text, for messages and comparison."""
        return "where nobody knows" if name in self.unknown else self.positions.get(name, "the beginning")


LEAST = -(2**31)
"""The least int. It counts for longs too: a column that was widened from int keeps the partitions of ints."""
WIDEST = 2**30
"""The greatest width that Iceberg's truncate of ints can add to a remainder without overflow
(org.apache.iceberg.util.TruncateUtil)."""


@dataclass(frozen=True)
class MergeWork:
    """How a step's rows, the changes, are merged into the table."""

    keys: tuple[str, ...]
    """The columns that identify a row."""
    delete_when: str = ""
    """An SQL condition by which a change deletes its row."""
    order_by: str = ""
    """The column that decides which change of a key is the latest; without it, two changes of a key are an error."""
    only_inserts: bool = False
    """Whether only rows with new keys are inserted, one for each key, and nothing else changes."""


@dataclass(frozen=True)
class Bound:
    """The values of the changes in one column, as text that Iceberg reads; times are microseconds since 1970."""

    column: str
    values: tuple[str, ...] = ()
    """All of them; empty if they are too many to list."""
    low: str = ""
    """Included, as is ``high``; empty if there are ``values``."""
    high: str = ""


@dataclass(frozen=True)
class Merged:
    """What one worker's merge did, in rows, and within which bounds."""

    bounds: tuple[Bound, ...] = ()
    """All rows that a change could match are within all of these, and Iceberg finds all files with such rows."""
    changes: int = 0
    """Rows that the step returned."""
    left_out: int = 0
    """Changes that repeat another, or have a later change of their key."""
    matched: int = 0
    """Other changes whose key was in the table; some may change nothing."""
    inserted: int = 0
    """Rows of the table, like ``updated`` and ``deleted``."""
    updated: int = 0
    deleted: int = 0

    @property
    def is_idle(self) -> bool:
        """Whether the merge leaves the table's rows as they are."""
        return not (self.inserted or self.updated or self.deleted)


def truncates_in_order(width: int, number: int) -> bool:
    """Whether Iceberg truncates a number, and all greater numbers, without overflow.

    PyIceberg never overflows: without overflow, both compute the same partition.
    """
    return width <= WIDEST and LEAST + width <= number


class OtherLibrary(ValueError):
    """A run and its worker have different versions of this library."""


class Work(Durable):
    """What a run asks of a worker, which refuses another version of this library."""

    def to_fields(self) -> dict[str, Any]:
        """Returns a JSON object with the library's version."""
        return {**super().to_fields(), LIBRARY: VERSION}

    @classmethod
    def _current(cls, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Raises OtherLibrary for another version of the library."""
        if (of_run := fields.get(LIBRARY)) != VERSION:
            raise OtherLibrary(
                f"the run has lakehouse-assets {of_run}, but its worker has {VERSION}: install the same version for "
                "the code location, runs and workers, then re-execute from failure"
            )
        return {name: value for name, value in fields.items() if name != LIBRARY}


@dataclass(frozen=True)
class RewriteAssignment(Work):
    """All that a worker needs to rewrite one fork. It is stored, so it holds no secrets."""

    table: str
    token: str
    chunk: int
    fork_base: str
    """A metadata file that lists only the files to rewrite. They get the table's current partition spec."""
    receipt: str
    """Where the worker writes its receipt."""
    sorts: bool = False
    """Whether to sort rows by the table's sort order; else they keep their order."""
    zorder: tuple[str, ...] = ()
    """Columns of a z-order, used in place of the sort order."""
    counts_only: bool = False
    """Whether the digests only count rows, without hashes."""
    compute: str = "local"
    catalog: Mapping[str, str] = field(default_factory=dict)
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    kind: Literal["rewrite"] = "rewrite"
    """Tells it from an Assignment."""

    @property
    def work(self) -> str:
        """16 hex digits over all that decides the result, except code: a rewrite is trusted for its proof."""
        how = (self.sorts, self.zorder, self.counts_only, sorted(self.spark_conf.items()))
        return _digest((self.table, self.token, self.chunk, self.fork_base, how))


class Digest(NamedTuple):
    """A multiset of rows, by their 64-bit hashes. Digests of parts add up to that of the whole.

    The xor alone misses pairs of equal rows; a count and a sum miss a few changes that cancel out.
    """

    rows: int = 0
    low: int = 0
    """Sum of the hashes' lower 32 bits."""
    high: int = 0
    """Sum of their upper 32 bits."""
    xor: int = 0

    def __add__(self, other: Digest) -> Digest:  # type: ignore[override]  # a tuple would concatenate
        return Digest(self.rows + other.rows, self.low + other.low, self.high + other.high, self.xor ^ other.xor)


@dataclass(frozen=True)
class Rewritten:
    """The proof that rewritten files hold the same rows."""

    before: Mapping[str, Digest]
    """By path of the data files that were read; a file without rows may be missing."""
    after: Mapping[str, Digest]
    """By path of the data files that were written."""


OUT_OF_REACH = "out_of_reach"
"""Key of a failure report: whether another worker may succeed, as S3 did not answer or vended credentials expired."""
CAUSE = "cause"
"""Key of the same report: a Cause, by which a person is advised."""


class Cause(StrEnum):
    """Whose fault it is that a chunk was not staged."""

    MOVED = "moved"
    """An input that can only be read in its current version changed before or during the step."""
    INPUT = "input"
    """The step's input is missing or wrong, for other chunks perhaps too; or its changes are unknown."""
    STEP = "step"
    """The step raised, returned rows that don't fit the table, or its declaration can't work."""
    WORKER = "worker"
    """The worker was lost, could not start, ended silently, or lacked something."""


@dataclass(frozen=True)
class HookWork:
    """What an extension passes to its part of a worker."""

    hook: str
    """``module:class`` of a StageHook."""
    told: Any
    """What that hook gets, as JSON data."""

    def __post_init__(self) -> None:
        """Converts ``told`` to what the worker will read. Raises TypeError for what is no JSON."""
        # JSON turns tuples into lists and keys into text: run and worker must compute the same hash.
        object.__setattr__(self, "told", json.loads(json.dumps(self.told)))


@dataclass(frozen=True)
class Assignment(Work):
    """All that a worker needs to stage one chunk. It is stored, so it holds no secrets."""

    FORMAT: ClassVar[int] = 2

    table: str
    step: str
    """``module:function``."""
    token: str
    """The id of the run at the head of the resume chain."""
    chunk: int
    window: Window
    fork_base: str
    """The metadata file that the worker registers."""
    receipt: str
    """Where the worker writes its receipt."""
    code_version: str
    """Table.code_version."""
    code: str
    """worker_code(); a worker with other code refuses."""
    base_snapshot_id: int | None = None
    """The snapshot that the fork base keeps, if any."""
    unique: tuple[str, ...] = ()
    """Columns that together must be unique within an Iceberg partition."""
    checks: Mapping[str, str] = field(default_factory=dict)
    """Table.checks."""
    merge: MergeWork | None = None
    """How the step's rows are merged; None: they are appended."""
    left_out: tuple[str, ...] = ()
    """Columns that the step returns and the table lacks."""
    undeclared: tuple[str, ...] = ()
    """Columns that the table has and the step does not return: nulls in new rows, kept by updates."""
    extensions: Mapping[str, HookWork] = field(default_factory=dict)
    """By the extensions' names."""
    compute: str = "local"
    """As LAKEHOUSE_COMPUTE has it."""
    catalog: Mapping[str, str] = field(default_factory=dict)
    """PyIceberg's, without secrets; those in the worker's environment win."""
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    """Without secrets; they win over the worker's defaults."""
    kind: Literal["stage"] = "stage"

    def to_fields(self) -> dict[str, Any]:
        """Keeps the window's whole UTC offsets.

        Pydantic drops an offset's seconds, which some have before standard time.
        """
        fields, window = super().to_fields(), self.window
        bounds = {"start": window.start, "end": window.end}
        fields["window"] |= {name: bound and bound.isoformat() for name, bound in bounds.items()}
        return fields

    @classmethod
    def _current(cls, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Reads the window's bounds. Raises ValueError as Work does."""
        window = fields.get("window")
        if isinstance(window, Mapping):
            read = {name: datetime.fromisoformat(text) for name in ("start", "end") if (text := window.get(name))}
            fields = {**fields, "window": {**window, **read}}
        return super()._current(fields)

    @property
    def hooks(self) -> list[str]:
        """The hooks of extensions, as ``module:class``."""
        return [work.hook for work in self.extensions.values()]

    @property
    def parts(self) -> dict[str, str]:
        """Hashes of all that decides the rows, 16 hex digits each, by the part's name for people.

        The first part that changed explains why later ones did. Not included: where the worker runs and its environment
        (secrets, a spark-defaults.conf, installed packages).
        """
        window = self.window
        bounds = [bound and bound.isoformat() for bound in (window.start, window.end)]
        parts: dict[str, object] = {
            "code": self.code,
            "declaration": (self.step, self.code_version, self.unique),
            "Spark settings": sorted(self.spark_conf.items()),
            "partitions or drop zone": (window.keys, bounds, sorted(window.dimensions.items()), window.landing),
            "table": (self.table, self.fork_base, self.base_snapshot_id),
        }
        if taken := parts.keys() & self.extensions.keys():
            raise DeclarationError(
                f"extensions can't have the names {', '.join(sorted(taken))}: give their hooks other names"
            )
        parts |= {name: (work.hook, json.dumps(work.told, sort_keys=True)) for name, work in self.extensions.items()}
        return {name: _digest(part) for name, part in parts.items()}

    @property
    def work(self) -> str:
        """16 hex digits over all parts: a receipt of other work is not taken for this chunk's."""
        return _digest((self.token, self.chunk, self.parts))


def _digest(data: object) -> str:
    return hashlib.sha256(repr(data).encode()).hexdigest()[:16]
