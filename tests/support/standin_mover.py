"""Moves rows without Spark, for tests of readers that want hundreds of moves: the order of the steps is the real one.
What a run really does is tested with runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table as IcebergTable

from lakehouse_assets.commit.positions import POSITIONS, TRACKED_INPUTS, positions_of
from lakehouse_assets.commit.snapshot import LeanTransaction
from lakehouse_assets.declare.row_source import Offsets, Split
from lakehouse_assets.declare.table import Table
from lakehouse_assets.extensions.sources.hot_and_cold import hot_schema
from lakehouse_assets.extensions.sources.source_range import offsets


def made(catalog: Catalog, table: Table) -> IcebergTable:
    """The table, empty, as a first run makes it."""
    catalog.create_namespace_if_not_exists(table.domain)
    return catalog.create_table(table.identifier, table.schema, properties=dict(table.all_properties))


def position_of(cold: IcebergTable, table: Table) -> Offsets | None:
    assert table.source is not None
    return offsets(positions_of(cold.metadata), table.source.name)


def moving(catalog: Catalog, table: Table) -> Iterator[None]:
    """Moves what is safe, and stops after each step."""
    source = table.source
    assert source is not None
    cold = catalog.load_table(table.identifier)
    position = position_of(cold, table)
    state = source.state(position)
    begin = state.begin(position)
    to = source.bound(state, begin)
    yield
    keys, schema = list(table.write_mode.match_on), hot_schema(table)
    spans = begin.spans(to).items()
    batches: list[Any] = [b for number, span in spans for b in source.read(Split(number, *span), schema)]
    yield
    source.prove(begin)
    rows = pa.Table.from_batches(batches, schema)
    summary = {POSITIONS: json.dumps({source.name: str(source.marked(to))})}
    with LeanTransaction(cold) as transaction:  # PyIceberg's copies the metadata with all its snapshots each time
        if TRACKED_INPUTS not in cold.properties:
            transaction.set_properties({TRACKED_INPUTS: source.name})
        if keys:  # the whole table anew: it is small, and stays one file
            kept = cold.scan().to_arrow()
            kept = kept.filter(pc.invert(pc.is_in(kept[keys[0]], rows[keys[0]])))
            came = rows.filter(pc.invert(rows["deleted"])).drop_columns(["deleted"])
            rows = pa.concat_tables([kept, came.cast(kept.schema)])
            transaction.overwrite(rows, snapshot_properties=summary)
        else:
            transaction.append(rows.cast(cold.schema().as_arrow()), snapshot_properties=summary)
    yield
