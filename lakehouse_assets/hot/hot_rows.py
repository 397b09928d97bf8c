"""The rows that a source holds from a position on, read at once, with the proof that none of them was missing.

Which position it is, and how they are joined with the table, is hot_and_cold.py's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lakehouse_assets.commit.positions import read_on
from lakehouse_assets.declare.table import Table
from lakehouse_assets.errors import SourceLost, TooMuchHot
from lakehouse_assets.sources.offsets import Offsets
from lakehouse_assets.sources.row_source import DELETED, RowSource, Split
from lakehouse_assets.wire.work import ReadOn

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table as IcebergTable


@dataclass(frozen=True)
class HotRows:
    """The rows of a source from a position on, by the split they were read by.

    Example:
        >>> HotRows("Zk3X", {Split(0, 0, 5): None, Split(0, 5, 9): None}).splits_of(Split(0, 3, 12))
        [Split(partition=0, begin=3, end=5), Split(partition=0, begin=5, end=9), Split(partition=0, begin=9, end=12)]
    """

    identity: str = ""
    """Which source they are of, as in Offsets."""
    by_split: Mapping[Split, pa.Table] = field(default_factory=dict)

    def kept(self, identity: str) -> HotRows:
        """Returns those that need not be read again: of the same source, behind whose split nothing can change."""
        if identity != self.identity:
            return HotRows()
        return HotRows(identity, {split: rows for split, rows in self.by_split.items() if split.end is not None})

    def splits_of(self, split: Split) -> list[Split]:
        """Divides a split by what was read of it before, which need not be read again: its rows stay the same."""
        if split.end is None:
            return [split]
        divided, begin = list[Split](), split.begin
        for known in sorted(self.by_split, key=lambda one: one.begin):
            if known.partition == split.partition and known.end is not None and begin < known.end <= split.end:
                divided.append(Split(split.partition, begin, known.end))
                begin = known.end
        return [*divided, *([Split(split.partition, begin, split.end)] if begin < split.end else [])]

    def to_arrow(self, schema: pa.Schema) -> pa.Table:
        """Returns all of them; columns that they lack are null."""
        import pyarrow as pa

        return pa.concat_tables([schema.empty_table(), *self.by_split.values()], promote_options="default")


def moved_to(table: Table, cold: IcebergTable | None) -> Offsets | None:
    """Returns how far a table's source was moved into the loaded table; None where nothing was.

    cold: None where there is no such table yet. Raises SourceLost where it can't be known.
    """
    assert table.source is not None
    known = read_on(cold.metadata) if cold is not None else ReadOn()
    if why := known.unknown.get(table.source.name):
        raise SourceLost(_advised(table, f"how far {table.source.name} was moved can't be known: {why}"))
    return known.offsets(table.source.name)


def read_hot(table: Table, cold: IcebergTable | None, position: Offsets | None, limit: int, before: HotRows) -> HotRows:
    """Returns the rows of a table's source from a position on, and proves that none of them was missing.

    A column that neither has yet is left out; one that only the table has would be overwritten with nulls.
    cold: the table that the position is of. limit: the most rows. before: what was read before of the same source.
    Raises SourceLost, SourceUnreachable, TooMuchHot and BadValue.
    """
    source = table.source
    assert source is not None
    state = source.state(position)
    if problem := state.problem(source.name, position):
        raise SourceLost(_advised(table, problem))
    begin = state.begin(position)
    known = before.kept(state.identity)
    lacking = source.lacking([column.name for column in table.schema.columns])
    if gone := sorted({*lacking} & {*cold.schema().column_names}) if cold is not None else []:
        raise SourceLost(_advised(table, f"{source.name} has no column {', '.join(gone)}, which the table has"))
    schema, rows = hot_schema(table), 0
    for name in lacking:
        schema = schema.remove(schema.get_field_index(name))
    found: dict[Split, pa.Table] = {}
    for split in (part for whole in source.visible(state, begin) for part in known.splits_of(whole)):
        if split in known.by_split:
            found[split] = known.by_split[split]
        else:
            found[split] = _read(source, split, schema, limit - rows + 1)
        rows += found[split].num_rows
        if rows > limit:
            raise TooMuchHot(
                f"{source.name} holds more than {limit:,} rows that are not moved into {table.identifier}: "
                f"materialize {table.key.to_user_string()}, or raise limit_hot"
            )
    try:
        source.prove(begin)  # after the rows were read: else what was purged in between is missed
    except SourceLost as error:
        raise SourceLost(_advised(table, str(error))) from error
    return HotRows(state.identity, found)


def hot_schema(table: Table) -> pa.Schema:
    """Returns the columns of a table's source as Arrow has them, all of which may be null.

    They are of the types that a worker moves them as, which PySpark makes of a table's.
    """
    import pyarrow as pa
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    assert table.source is not None
    plain = schema_to_pyarrow(table.schema, include_field_ids=False)
    more = [pa.field(DELETED, pa.bool_())] if table.source.marks_deleted else []
    return pa.schema([*(pa.field(one.name, _small(one.type)) for one in plain), *more])


def _small(kind: pa.DataType) -> pa.DataType:
    """Returns a type with 32-bit offsets, as PySpark has it, in place of PyIceberg's with 64 bits."""
    import pyarrow as pa

    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", _small(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_small(kind.key_type), _small(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _small(one.type)) for one in kind])
    return kind


def _read(source: RowSource, split: Split, schema: pa.Schema, limit: int) -> pa.Table:
    """Returns a split's rows, or somewhat more than ``limit`` of them."""
    import pyarrow as pa

    batches: list[pa.RecordBatch] = []
    rows = 0
    for batch in source.read(split, schema, limit):
        batches.append(batch)
        rows += batch.num_rows
        if rows >= limit:
            break
    return pa.Table.from_batches(batches, schema)


def _advised(table: Table, problem: str) -> str:
    return (
        f"table {table.identifier} can't be read as one with its source: {problem}. Read the table alone, and see what "
        f"its next run says of the source"
    )
