"""The source rows that a run moves, in a worker."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType, StructField, StructType

from lakehouse_assets.declare.row_source import DELETED, Offsets, RowSource, Split, client_environment
from lakehouse_assets.errors import BadValue, LakehouseError, SourceLost, SourceUnreachable
from lakehouse_assets.extensions.sources.source_range import SourceRange, offsets
from lakehouse_assets.step.window import MOVE
from lakehouse_assets.wire.work import ReadOn, decode
from lakehouse_assets.worker.failure import changes_unknown
from lakehouse_assets.worker.hook import ChunkContext, StageHook

if TYPE_CHECKING:
    import pyarrow as pa

RAISED: Mapping[str, type[LakehouseError]] = {kind.__name__: kind for kind in (SourceLost, SourceUnreachable, BadValue)}
"""Errors of a source that a Spark task may raise, by name."""
OF_TASK = re.compile(rf"(?:\w+\.)*({'|'.join(RAISED)}): (.+)")
"""Matches such an error in Spark's: Spark keeps only the text of a task's error."""


@dataclass(frozen=True)
class SplitReader:
    """Reads splits in Spark's Python workers."""

    source: RowSource
    splits: Sequence[Split]
    schema: pa.Schema
    environment: Mapping[str, str]
    """The clients' variables, as client_environment() returns them."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Yields the rows of the splits that the batches number."""
        os.environ.update(self.environment)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self.source.read(self.splits[number], self.schema)


def read_range(
    spark: SparkSession, chosen: SourceRange, position: Offsets | None, columns: StructType
) -> tuple[DataFrame, Offsets]:
    """Returns a range's unmoved rows, and the position behind them.

    Reads rows once, and stores them: an upsert in the source moves a row behind the range's end, so a second read would
    miss it. Raises SourceLost, SourceUnreachable and BadValue.
    """
    source, begin = chosen.source, chosen.left(position)
    begin = begin.widened(len(chosen.to.by_partition))
    # Now as well, to fail before the long read.
    source.prove(begin)
    spans = begin.spans(chosen.to)
    more = [StructField(DELETED, BooleanType())] if source.marks_deleted else []
    schema = StructType([*(StructField(field.name, field.dataType) for field in columns), *more])
    splits = [Split(number, *span) for number, span in spans.items()]
    if not splits:
        return spark.createDataFrame([], schema), begin
    read = SplitReader(source, splits, to_arrow_schema(schema), client_environment())
    try:
        # One Spark partition, with one number, for each split.
        numbers = spark.range(0, len(splits), 1, len(splits))
        rows = numbers.mapInArrow(read, schema).localCheckpoint()
    except PythonException as error:
        if found := OF_TASK.search(str(error)):
            raise RAISED[found[1]](found[2]) from None
        raise
    # Proves that no row was missing during the read.
    source.prove(begin)
    # The source may have got a column since the plan: its values were not read, and a purge would delete them. A column
    # that the source lacks needs no check, as the read has failed then.
    if problem := source.column_problem(columns.names, may_lack=True):
        raise SourceLost(problem)
    # The table may already be beyond the planned end.
    ends = (max(pair) for pair in zip(begin.by_partition, chosen.to.by_partition, strict=True))
    # By the mark, prove() finds out later if the source was set back to a time before this read.
    return rows, source.marked(Offsets(chosen.to.identity, tuple(ends)))


class SourceRows(StageHook):
    """Lets a step read the run's source rows."""

    def __init__(self, chunk: ChunkContext, told: Any) -> None:
        """told: what MoveSource.work() returned."""
        super().__init__(chunk, told)
        self.range = decode(SourceRange, told["range"])
        self.read_on = decode(ReadOn, told["read_on"])
        self.read_to: dict[str, str] = {}

    def offers(self) -> Mapping[str, Callable[..., DataFrame]]:
        """Returns Window.source_rows()."""
        return {"source_rows": self.source_rows}

    def done(self) -> Mapping[str, Any]:
        """Returns the position behind the rows, for the receipt; none if nothing was moved."""
        return {"read_to": self.read_to}

    def source_rows(self) -> DataFrame:
        """Returns the run's rows of the source. Raises as read_range(), and ChangesUnknown."""
        work, source = self.chunk.assignment, self.range.source
        if source.name in self.read_on.unknown:
            raise changes_unknown(source.name, work.table, self.read_on.unknown[source.name])
        position = offsets(self.read_on, source.name)
        # The table's own step adds columns that the source lacks; without such a step, reading them fails.
        lacking = source.lacking(self.chunk.columns.names) if work.step != MOVE else ()
        left_out = {*work.undeclared, *lacking}
        columns = StructType([one for one in self.chunk.columns if one.name not in left_out])
        rows, to = read_range(self.chunk.spark, self.range, position, columns)
        if to != position:
            self.read_to[source.name] = str(to)
        return rows
