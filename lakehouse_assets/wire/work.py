"""What a worker is told: assignments, with the pins, changes and source ranges that it reads, and their JSON.

Plain data without Dagster, Spark or I/O: both sides of the process border import it.
"""

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
from lakehouse_assets.sources.kafka import KafkaTopic
from lakehouse_assets.sources.postgres import PostgresTable
from lakehouse_assets.sources.row_source import Offsets
from lakehouse_assets.step.window import Window

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pyiceberg.io import FileIO

FORMAT_VERSION = 1


class Durable:
    """The base of frozen dataclasses that are written as JSON with a version, and are read by their fields' types."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    def to_fields(self) -> dict[str, Any]:
        """Returns a JSON object with the version; datetimes in ISO 8601."""
        return {"version": FORMAT_VERSION, **self._codec().dump_python(self, mode="json")}

    def to_json(self) -> str:
        """Returns the same as text, as from_json() reads it."""
        return json.dumps(self.to_fields())

    def write(self, io: FileIO, location: str) -> None:
        """Writes the same in one piece, over what is there. read_json() reads it."""
        with io.new_output(location).create(overwrite=True) as stream:
            stream.write(self.to_json().encode())

    @classmethod
    def from_json(cls, data: str | Mapping[str, Any]) -> Self:
        """Reads a JSON object, or its text.

        Raises ValueError for another version, for other fields, and for a text that is torn.
        """
        fields = json.loads(data) if isinstance(data, str) else data
        if not isinstance(fields, Mapping):
            raise ValueError("this is no JSON object")
        if (version := fields.get("version")) != FORMAT_VERSION:
            raise ValueError(
                f"this is of version {version!r}, this code reads version {FORMAT_VERSION}: deploy the "
                "code location and the workers from one build"
            )
        found: Self = cls._codec().validate_python({name: of for name, of in fields.items() if name != "version"})
        return found

    @classmethod
    @cache
    def _codec(cls) -> TypeAdapter[Any]:
        from pydantic import TypeAdapter  # here: most processes that know the kind never read or write one

        return TypeAdapter(cls)


MAIN = "main"
"""Iceberg's main branch; its own constant is in a module that takes half a second to import."""


REF = re.compile(r"(\w+(?:\.\w+)+?)\.(?:branch|tag)_(.+)")
"""A table's identifier, and behind it a branch or tag as Spark names it, which may have dots
(https://iceberg.apache.org/docs/latest/spark-queries/#time-travel)."""


def table_and_ref(name: str) -> tuple[str, str]:
    """Returns the identifier of a table, and the branch or tag that its name ends with; MAIN where there is none."""
    found = REF.fullmatch(name)
    return (found[1], found[2]) if found else (name, MAIN)


@dataclass(frozen=True)
class Pin:
    """One version of a table that a run reads, decided when the run is planned."""

    name: str
    """The name by which Spark reads it from the catalog ``lake``: the table's identifier, and a branch or tag of it."""
    uuid: UUID
    """The table's uuid: a table that was created again is another one."""
    snapshot_id: int | None
    """The snapshot; None for a table that has none yet, and is read as empty."""
    schema_id: int
    """The schema that its columns are read by."""
    metadata: str
    """The location of the run's own copy of the table's metadata, in which no commit can be made."""
    committed_at: datetime | None = None
    """When the snapshot was committed, by the clock of whoever did it."""
    run_id: str | None = None
    """The Dagster run that committed the snapshot; None where it was none of ours."""

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
        """The parts of it that decide which rows a step reads."""
        return self.name, str(self.uuid), self.snapshot_id, self.schema_id


EMPTY = 0
"""Stands for the snapshot of an input that had none: no snapshot has this id."""


class Position(NamedTuple):
    """A version of one input: up to it, its changes were read."""

    snapshot_id: int
    """EMPTY where the input had no snapshot."""
    uuid: UUID
    """The input's uuid: snapshot ids of a table that was created again mean nothing."""

    def __str__(self) -> str:
        return f"{self.snapshot_id}@{self.uuid}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Reads what str() gives. Raises ValueError for another text."""
        snapshot_id, _, uuid = text.partition("@")
        return cls(int(snapshot_id), UUID(uuid))


@dataclass(frozen=True)
class ReadOn:
    """How far each input was read by the runs whose rows are in the table."""

    positions: Mapping[str, str] = field(default_factory=dict)
    """A Position as text for each input whose changes were read; one that is missing is read from its beginning."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Why the position of an input can't be known, in a clause, by input."""

    def text(self, name: str) -> str:
        """Returns how far an input was read, for people and to be compared."""
        return "where nobody knows" if name in self.unknown else self.positions.get(name, "the beginning")

    def offsets(self, source: str) -> Offsets | None:
        """Returns how far a source was read; None where it was not, or that can't be known. source: its name."""
        text = self.positions.get(source)
        return Offsets.parse(text) if text else None


@dataclass(frozen=True)
class SourceRange:
    """The rows of a source that a run moves: those from ``begin`` up to ``to``, itself outside."""

    source: KafkaTopic | PostgresTable
    begin: Offsets
    """The table's position when the run was planned; the first row that was there where it had none."""
    to: Offsets
    lost_from: Offsets | None = None
    """The table's position where the source has lost rows behind it that the run gives up: those up to ``begin``."""

    @property
    def given_up(self) -> str:
        """Says which offsets the run gives up; empty for none."""
        if self.lost_from is None:
            return ""
        spans = self.lost_from.spans(self.begin).items()
        where = ", ".join(f"{begin} to {end - 1} of partition {number}" for number, (begin, end) in spans)
        return f"{self.lost_from.before(self.begin)} offsets that {self.source.name} has lost: {where}"

    @property
    def version(self) -> tuple[str, ...]:
        """The parts of it that decide which rows it has."""
        skipped = self.source.skip if isinstance(self.source, KafkaTopic) else ()
        return self.source.name, str(self.begin), str(self.to), *skipped

    def left(self, position: Offsets | None) -> Offsets:
        """Returns where to begin now: another run may have moved on since, and nothing is moved twice.

        Rows that are given up are passed over, and no others.
        """
        if position is None or self.lost_from is None or position.source != self.begin.source:
            return position or self.begin
        count = len(self.begin.by_partition)
        places = (one.widened(count).by_partition for one in (self.lost_from, position, self.begin))
        at = tuple(end if lost <= now < end else now for lost, now, end in zip(*places, strict=True))
        passes_over = at != position.widened(count).by_partition
        return Offsets(self.begin.identity if passes_over else position.identity, at)


LEAST = -(2**31)
"""The least int. A column of longs may have been one of ints, and keeps partitions that were computed of these."""
WIDEST = 2**30
"""The greatest width that Iceberg's truncate of ints can add to the rest of a division by it without an overflow
(org.apache.iceberg.util.TruncateUtil)."""


@dataclass(frozen=True)
class MergeWork:
    """The options by which the rows that a step returns, the changes, are merged into the table."""

    keys: tuple[str, ...]
    """The columns that identify a row."""
    delete_when: str = ""
    """A condition in SQL over the changes' columns. A change that it is true of deletes its row; "": none does."""
    order_by: str = ""
    """The column of the changes by which the latest of several with one key is taken; "": two such changes are an
    error."""
    only_inserts: bool = False
    """Whether rows whose key is there, or comes twice, are left out, and nothing else changes."""


@dataclass(frozen=True)
class Bound:
    """The values that the changes have in one column.

    Values are text that Iceberg reads as the column's type; times are microseconds since 1970.
    """

    column: str
    values: tuple[str, ...] = ()
    """All values; empty where they are many."""
    low: str = ""
    """Where ``values`` is empty, the least value, included."""
    high: str = ""
    """Where ``values`` is empty, the greatest value, included."""


@dataclass(frozen=True)
class Merged:
    """The numbers of what one worker's merge did, in rows, and the bounds within which it did it."""

    bounds: tuple[Bound, ...] = ()
    """Rows of the table that any change could have met are within all of them, and Iceberg finds all files that hold
    such rows."""
    changes: int = 0
    """Rows that the step returned."""
    left_out: int = 0
    """Changes that were repeated, or followed by a later one of their key."""
    matched: int = 0
    """The other changes whose key was there; some may change nothing."""
    inserted: int = 0
    """Rows of the table, as are the next two."""
    updated: int = 0
    deleted: int = 0

    @property
    def is_idle(self) -> bool:
        """Whether the merge leaves the table's rows as they are."""
        return not (self.inserted or self.updated or self.deleted)


def truncates_in_order(width: int, number: int) -> bool:
    """Tells whether Iceberg gives a number, and all greater ones, the partition that PyIceberg computes too.

    PyIceberg knows no overflow; where Iceberg's ints overflow, the partition may be any.
    width: of the truncate. number: of a column of ints or longs.
    """
    return width <= WIDEST and LEAST + width <= number


class OtherLibrary(ValueError):
    """A run and its worker have two versions of this library."""


class Work(Durable):
    """Carries what a run asks of a worker, which refuses it where its library has another version than the run's."""

    def to_fields(self) -> dict[str, Any]:
        """Returns a JSON object with the library's version."""
        return {**super().to_fields(), LIBRARY: VERSION}

    @classmethod
    def from_json(cls, data: str | Mapping[str, Any]) -> Self:
        """Reads a JSON object, or its text. Raises ValueError as Durable does, OtherLibrary for another version's."""
        fields = json.loads(data) if isinstance(data, str) else data
        if (of_run := fields.get(LIBRARY)) != VERSION:
            raise OtherLibrary(
                f"the run has lakehouse-assets {of_run}, its worker {VERSION}: install one version for code location, "
                "runs and workers, then re-execute from failure"
            )
        return super().from_json({name: value for name, value in fields.items() if name != LIBRARY})


@dataclass(frozen=True)
class RewriteAssignment(Work):
    """Everything that one worker needs to rewrite the files of one fork.

    It is written to disk or S3, so it holds no secrets. compute, catalog and spark_conf are as in Assignment.
    """

    table: str
    """Iceberg identifier in the catalog ``lake``, for credentials and messages."""
    token: str
    """The token of the run's work."""
    chunk: int
    """The ordinal of the chunk in that work."""
    fork_base: str
    """Location of a metadata file that lists what is to be rewritten and nothing else. All of it is rewritten, to files
    of the table's current partition spec."""
    receipt: str
    """Location that the receipt is written to."""
    sorts: bool = False
    """Whether rows are sorted by the table's sort order; else they stay in the order in which they are read."""
    zorder: tuple[str, ...] = ()
    """The columns by whose bits, in turn, rows are sorted in place of that; empty for none."""
    counts_only: bool = False
    """Whether the rows on both sides are counted, and not hashed."""
    compute: str = "local"
    catalog: Mapping[str, str] = field(default_factory=dict)
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    kind: Literal["rewrite"] = "rewrite"
    """What a worker knows the payload by."""

    @property
    def work(self) -> str:
        """A hash of all that decides the result, 16 hex digits.

        The worker's code is no part of it: whoever lands what it wrote trusts its proof, not its code.
        """
        how = (self.sorts, self.zorder, self.counts_only, sorted(self.spark_conf.items()))
        return _digest((self.table, self.token, self.chunk, self.fork_base, how))


class Digest(NamedTuple):
    """A multiset of rows, by the 64-bit hashes of its rows. Digests of parts add up to that of the whole.

    The xor alone is blind to pairs of equal rows; a count and a sum are blind to few changes that make up for each
    other.
    """

    rows: int = 0
    """The number of rows."""
    low: int = 0
    """The sum of the lower 32 bits of the hashes."""
    high: int = 0
    """The sum of the upper 32 bits of the hashes."""
    xor: int = 0
    """The xor of the hashes."""

    def __add__(self, other: Digest) -> Digest:  # type: ignore[override]  # no tuples one behind the other
        return Digest(self.rows + other.rows, self.low + other.low, self.high + other.high, self.xor ^ other.xor)


@dataclass(frozen=True)
class Rewritten:
    """The proof that the rows of rewritten files are the same; a part of its Receipt."""

    before: Mapping[str, Digest]
    """By file path, the rows that were read of the fork's data files before; a file without rows may be missing."""
    after: Mapping[str, Digest]
    """The same of the data files after."""


OUT_OF_REACH = "out_of_reach"
"""A key of a worker's report of its failure: whether another worker may succeed, because S3 did not answer or
credentials that the catalog vended expired."""
CAUSE = "cause"
"""A key of the same report: one of Cause, by which a person is told what to do."""


class Cause(StrEnum):
    """The side whose fault it is that a chunk was not staged."""

    MOVED = "moved"
    """An input that can only be read as it is had changed, or did while the step read it."""
    INPUT = "input"
    """The step's input is missing or wrong, so that other chunks may have read it so too, or what changed in it since
    it was read can't be told."""
    STEP = "step"
    """The step raised, for whatever reason, returned rows that don't fit the table, or its declaration can't work."""
    WORKER = "worker"
    """The worker was lost, could not be started, ended without a word, or lacked something: not the step's fault."""


@dataclass(frozen=True)
class Assignment(Work):
    """Everything that one worker needs to stage one chunk.

    It is written to disk or S3, so it holds no secrets.
    """

    table: str
    """Iceberg identifier in the catalog ``lake``, such as ``nyc.flights``."""
    step: str
    """``module:function``, called as ``function(spark, window) -> DataFrame``."""
    token: str
    """The id of the run at the head of the resume chain."""
    chunk: int
    """The chunk's ordinal in the run, from 0."""
    window: Window
    fork_base: str
    """Location of the metadata file that the worker registers in its private catalog."""
    receipt: str
    """Location that the receipt is written to."""
    code_version: str
    """Table.code_version."""
    code: str
    """Hash of all that a worker of this step runs (steps.worker_code); a worker with other code refuses."""
    base_snapshot_id: int | None = None
    """The snapshot that the fork base was made from; None: without history."""
    unique: tuple[str, ...] = ()
    """Columns that together must be unique within an Iceberg partition; counted by the worker."""
    checks: Mapping[str, str] = field(default_factory=dict)
    """Table.checks."""
    merge: MergeWork | None = None
    """How the step's rows are merged into the fork's; None: they are appended to it."""
    left_out: tuple[str, ...] = ()
    """Columns that the step returns and the table lacks."""
    undeclared: tuple[str, ...] = ()
    """Columns of the table that the step does not return. They get nulls; rows that a merge updates keep theirs."""
    inputs: tuple[Pin, ...] = ()
    """The versions of the tables that the step reads."""
    read_on: ReadOn | None = None
    """How far their changes were read before; None for a table whose runs can't read on."""
    source: SourceRange | None = None
    """What the run moves of the table's source; None where it has none."""
    compute: str = "local"
    """Where the worker runs, as LAKEHOUSE_COMPUTE has it."""
    catalog: Mapping[str, str] = field(default_factory=dict)
    """PyIceberg's properties of ``lake`` without secrets; those in the worker's environment are added and win."""
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    """The table's and the environment's settings, without secrets; they win over the worker's defaults."""
    kind: Literal["stage"] = "stage"
    """What a worker knows the payload by."""

    def to_fields(self) -> dict[str, Any]:
        """Returns a JSON object in which the window's bounds have their whole UTC offset.

        Pydantic leaves out an offset's seconds, and offsets before standard time have some.
        """
        fields, window = super().to_fields(), self.window
        bounds = {"start": window.start, "end": window.end}
        fields["window"] |= {name: bound and bound.isoformat() for name, bound in bounds.items()}
        return fields

    @classmethod
    def from_json(cls, data: str | Mapping[str, Any]) -> Self:
        """Reads a JSON object, or its text. Raises ValueError as Work does."""
        fields = json.loads(data) if isinstance(data, str) else data
        window = fields.get("window")
        if isinstance(window, Mapping):
            read = {name: datetime.fromisoformat(text) for name in ("start", "end") if (text := window.get(name))}
            fields = {**fields, "window": {**window, **read}}
        return super().from_json(fields)

    @property
    def parts(self) -> dict[str, str]:
        """Hashes of all that decides the rows, 16 hex digits each, by what a person calls the part.

        They are in the order in which a change of one explains those of the next. Left out are where the worker runs
        and its environment (secrets, a spark-defaults.conf, installed packages).
        """
        window = self.window
        bounds = [bound and bound.isoformat() for bound in (window.start, window.end)]
        parts: dict[str, object] = {
            "code": self.code,
            "declaration": (self.step, self.code_version, self.unique),
            "Spark settings": sorted(self.spark_conf.items()),
            "partitions or drop zone": (window.keys, bounds, sorted(window.dimensions.items()), window.landing),
            "table": (self.table, self.fork_base, self.base_snapshot_id),
            "inputs": sorted(pin.version for pin in self.inputs),
            "positions in inputs": sorted(self.read_on.positions.items()) if self.read_on else (),
        }
        if self.source is not None:
            parts["source"] = self.source.version
        return {name: _digest(part) for name, part in parts.items()}

    @property
    def work(self) -> str:
        """A hash of all parts, 16 hex digits, so that a receipt of other work is not taken for this chunk's."""
        return _digest((self.token, self.chunk, self.parts))


def _digest(data: object) -> str:
    return hashlib.sha256(repr(data).encode()).hexdigest()[:16]
