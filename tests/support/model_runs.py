"""Runs of the model's table, in each write mode: what they stage, what they publish, and what its rows are then.
Plain data and PyIceberg in place of Spark. When a run is staged, lands or dies is lake_writers.py's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from enum import StrEnum

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from lakehouse_assets.commit.evolution import Evolution
from lakehouse_assets.commit.publish import Published, publish
from lakehouse_assets.commit.staged import StagedChunk, read_all
from lakehouse_assets.commit.strategies import strategy_of
from lakehouse_assets.commit.tokens import TOKEN, RunToken
from lakehouse_assets.declare.alignment import Alignment
from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.modes import Append, FullRefresh, Merge, Overwrite, WriteMode
from lakehouse_assets.declare.region import Region
from lakehouse_assets.declare.table import Table as Declaration
from lakehouse_assets.wire.receipts import Receipt
from lakehouse_assets.wire.work import Bound, Merged
from tests.support.forks import Daily, region
from tests.support.light_stage import added_rows, merge_by_copy, register
from tests.support.outsiders import Row
from tests.support.tables import numbers

Rows = Counter[Row]
"""As outsiders.multiset() has them: of each row the columns' values as text, in the order of the schema."""
Key = tuple[str, str]
"""A day and a carrier: what a merge finds rows by."""
Changes = Mapping[Key, int | None]
"""What a merge does, by key: how many flights the rows have then, or None where they are deleted."""
NEXT = {"none": "int", "int": "long", "long": "none"}
"""The type of the column ``extra``, and the one that a declaration may change it to: it is added, widened, dropped."""


class Kind(StrEnum):
    """A write mode."""

    OVERWRITE = "overwrites"
    APPEND = "appends"
    REFRESH = "full refreshes"
    MERGE = "merges"


MODES: Mapping[Kind, WriteMode] = {
    Kind.OVERWRITE: Overwrite(),
    Kind.APPEND: Append(),
    Kind.REFRESH: FullRefresh(),
    Kind.MERGE: Merge(["day", "carrier"]),
}


@dataclass
class Run:
    """A run with one chunk. each: how many rows it adds to its day, of a carrier of its own name; of a merge none, but
    changes. extra: the declared type of the column ``extra``. at: on which day of the model's clock it was created.
    ended: whether it ended without success. evolution, chunk: how and what it has staged; a run that found its table
    changed stages another. began_with: the table's shape when it staged."""

    name: str
    kind: Kind
    day: str
    each: int
    changes: Changes
    extra: str
    created: datetime
    at: float
    ended: bool = False
    evolution: Evolution = field(init=False)
    chunk: StagedChunk = field(init=False)
    began_with: object = field(init=False)

    @property
    def region(self) -> Region:
        return region(self.day) if self.kind is Kind.OVERWRITE else Alignment("nyc.flights", ()).region(())

    def stage(self, daily: Daily) -> Receipt:
        """Raises PublishRefused if the table can't become what is declared."""
        target = daily.table
        evolution = Evolution.of(declared(daily.identifier, self.extra), target)
        base = strategy_of(MODES[self.kind]).fork(evolution.target, self.name, planned_ms=0)
        fork = register(base.location, target.io.properties)
        if self.kind is Kind.MERGE:
            columns = {
                (date.fromisoformat(day), carrier): None if flights is None else {"flights": flights}
                for (day, carrier), flights in self.changes.items()
            }
            merge_by_copy(fork, ("day", "carrier"), columns, self.name)
        elif self.each:
            fork.append(self._staged(fork.schema()), snapshot_properties={TOKEN: self.name})
        receipt = Receipt(
            table=daily.identifier,
            token=self.name,
            chunk=0,
            keys=(self.day,),
            work="1",
            fork_base=base.location,
            base_snapshot_id=base.snapshot_id,
            metadata_location=fork.metadata_location,
            rows=added_rows(fork, base.snapshot_id),
            stage_seconds=0.0,
            created_at=datetime.now(UTC).isoformat(),
            worker="test",
            merged=Merged(_bounds(self.changes), len(self.changes)) if self.kind is Kind.MERGE else None,
        )
        (chunk,) = read_all(target.io.properties, [receipt])
        self.evolution, self.chunk, self.began_with = evolution, chunk, shape_of(target)
        return receipt

    def publish(self, daily: Daily) -> Published:
        change = strategy_of(MODES[self.kind]).change(self.region, [self.chunk])
        token = RunToken(self.name, self.created)
        return publish(daily.catalog, daily.identifier, change, token, [self.evolution])

    def landed(self, rows: Rows, then: Schema) -> tuple[Rows, Schema]:
        """The rows of the table, and its columns, if the run lands where it has these rows and columns."""
        now = self.evolution.target.schema() if self.evolution.applied else then
        kept = projected(rows, then, now)
        if self.kind is Kind.MERGE:
            return merged(kept, self.changes, now), now
        if self.kind is Kind.REFRESH:
            kept = Counter()
        if self.kind is Kind.OVERWRITE:
            kept = Counter({row: n for row, n in kept.items() if row[0] != _text_of_day(self.day)})
        staged = self.chunk.schema
        return kept + projected(rows_of(self._staged(staged), staged), staged, now), now

    def _staged(self, schema: Schema) -> pa.Table:
        day = date.fromisoformat(self.day)
        rows = [{"day": day, "carrier": self.name, "flights": i, "extra": i} for i in range(self.each)]
        return pa.Table.from_pylist(rows, schema=schema.as_arrow())


def declared(identifier: str, extra: str) -> Declaration:
    """The model's table, with the column ``extra`` of this type, or without."""
    columns = [column("day", "date", required=True), column("carrier", "string"), column("flights", "long")]
    return numbers(
        identifier=identifier,
        columns=[*columns, *([column("extra", extra)] if extra != "none" else [])],
        on_schema_change="sync_all_columns",
        allow_drop=["extra"] if extra == "none" else [],
        unique=[],
        sorted_by=[],
    )


def extra_of(table: Table) -> str:
    """The type of the column ``extra`` in the table as it is now."""
    return next((str(f.field_type) for f in table.schema().fields if f.name == "extra"), "none")


def columns_of(schema: Schema) -> set[tuple[int, str]]:
    """What files of a schema depend on: the columns' ids and types."""
    return {(f.field_id, str(f.field_type)) for f in schema.fields}


def shape_of(table: Table) -> tuple[int, set[tuple[int, str]]]:
    """What a change of columns depends on: these, and the id that the next new one gets."""
    return table.metadata.last_column_id, columns_of(table.schema())


def rows_of(rows: pa.Table, schema: Schema) -> Rows:
    """Rows that are written, as they will be read under a schema."""
    return Counter(tuple(repr(row.get(f.name)) for f in schema.fields) for row in rows.to_pylist())


def projected(rows: Rows, then: Schema, now: Schema) -> Rows:
    """Rows as they are read under another schema: columns are the same if they have the same id, and the values of one
    that came later are null."""
    at = {f.field_id: n for n, f in enumerate(then.fields)}
    order = [at.get(f.field_id) for f in now.fields]
    found: Rows = Counter()
    for row, count in rows.items():
        found[tuple("None" if n is None else row[n] for n in order)] += count
    return found


def merged(rows: Rows, changes: Changes, schema: Schema) -> Rows:
    """Rows after a merge: all rows of a key get its flights or go; a key without rows gets one."""
    texts = {(_text_of_day(day), repr(carrier)): flights for (day, carrier), flights in changes.items()}
    found: Rows = Counter()
    for row, count in rows.items():
        flights = texts.get(row[:2], row[2])
        if flights is not None:
            found[(*row[:2], str(flights), *row[3:])] += count
    nulls = ("None",) * (len(schema.fields) - 3)
    for key in set(texts) - {row[:2] for row in rows}:
        if (new := texts[key]) is not None:
            found[(*key, repr(new), *nulls)] += 1
    return found


def _text_of_day(day: str) -> str:
    return repr(date.fromisoformat(day))


def _bounds(changes: Changes) -> tuple[Bound, ...]:
    days, carriers = ({key[n] for key in changes} for n in (0, 1))
    return Bound("carrier", tuple(sorted(carriers))), Bound("day", (), min(days), max(days))
