"""A run that moves rows of a source into a table that is merged, without Spark: planned, staged and published apart.
All but the reading and merging is the project's own code; that these are right with Spark is tested with runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from pyiceberg.catalog import Catalog

from lakehouse_assets.commit.positions import PositionUpdate, positions_of
from lakehouse_assets.commit.publish import Published, publish
from lakehouse_assets.commit.staged import StagedChunk, read_all
from lakehouse_assets.commit.strategies import strategy_of
from lakehouse_assets.commit.tokens import RunToken
from lakehouse_assets.declare.row_source import Offsets, Split
from lakehouse_assets.declare.table import Table
from lakehouse_assets.extensions.sources.hook import source_range
from lakehouse_assets.extensions.sources.hot_and_cold import hot_schema
from lakehouse_assets.extensions.sources.postgres import DELETED
from lakehouse_assets.extensions.sources.source_range import SourceRange, offsets
from lakehouse_assets.inputs.hook import read_on_of, read_to
from lakehouse_assets.run.run_tags import READ_ALL
from lakehouse_assets.wire.receipts import Receipt
from lakehouse_assets.wire.work import Bound, Merged
from tests.support.light_stage import added_rows, merge_by_copy, receipt, register


@dataclass
class LightMove:
    """A run of a table with a source. name: its token. reads_all: whether a person has said that rows may be given up.
    plan: what it moves, decided when it is staged first; staged again, it moves what is there then."""

    table: Table
    name: str
    created: datetime = field(default_factory=lambda: datetime.now(UTC))
    reads_all: bool = False
    plan: SourceRange | None = None
    begin: Offsets = field(init=False)
    to: Offsets = field(init=False)
    chunk: StagedChunk = field(init=False)
    moves: PositionUpdate = field(init=False)

    def stage(self, catalog: Catalog) -> Receipt:
        """Raises PublishRefused and SourceLost where rows are lost that are not moved."""
        target, source = catalog.load_table(self.table.identifier), self.table.source
        tags = {READ_ALL: str(self.reads_all)}
        chosen = self.plan if self.plan and not hasattr(self, "chunk") else None
        chosen = chosen or source_range(self.table, target.metadata, tags)
        known = read_on_of(self.table, target.metadata, tags)
        assert source
        assert chosen
        assert known
        position = offsets(known, source.name)
        begin = chosen.left(position)
        source.prove(begin)
        changes = _changes(self.table, begin, chosen.to)
        source.prove(begin)
        to = Offsets(chosen.to.identity, tuple(map(max, begin.by_partition, chosen.to.by_partition)))
        to = source.marked(to) if begin.spans(to) else begin

        base = strategy_of(self.table.write_mode).fork(target, self.name, planned_ms=0)
        fork = register(base.location, target.io.properties)
        keys = self.table.write_mode.match_on
        merge_by_copy(fork, keys, changes, self.name)
        rows = added_rows(fork, base.snapshot_id)
        staged = replace(
            receipt(self.table.identifier, self.name, (), base.location, fork, rows),
            base_snapshot_id=base.snapshot_id,
            merged=Merged(tuple(_bound(name, n, changes) for n, name in enumerate(keys) if changes), len(changes)),
            extensions={"source": {"read_to": {source.name: str(to)} if to != position else {}}},
        )
        (self.chunk,) = read_all(target.io.properties, [staged])
        self.plan, self.begin, self.to, self.moves = (
            chosen,
            begin,
            to,
            PositionUpdate(read_to([staged]), positions_of(target.metadata)),
        )
        return staged

    def publish(self, catalog: Catalog) -> Published:
        """Raises StageAgain where it is to be staged again, RolledBack where it was published and rolled back."""
        change = strategy_of(self.table.write_mode).change(self.table.alignment.region(()), [self.chunk])
        token = RunToken(self.name, self.created)
        return publish(catalog, self.table.identifier, change, token, [self.moves])


def _changes(table: Table, begin: Offsets, to: Offsets) -> dict[tuple[Any, ...], Mapping[str, Any] | None]:
    assert table.source is not None
    found: dict[tuple[Any, ...], Mapping[str, Any] | None] = {}
    for number, span in begin.spans(to).items():
        for batch in table.source.read(Split(number, *span), hot_schema(table)):
            for row in batch.to_pylist():
                gone = row.pop(DELETED)
                found[tuple(row[key] for key in table.write_mode.match_on)] = None if gone else row
    return found


def _bound(name: str, n: int, changes: Mapping[tuple[Any, ...], object]) -> Bound:
    return Bound(name, tuple(sorted({str(key[n]) for key in changes})))
