"""Reads the range of a source that a run moves, once, and proves that none of its rows was missing.

How a source is read is sources/'; which range it is, run/moving.py's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType, StructField, StructType

from lakehouse_assets.errors import BadValue, LakehouseError, SourceLost, SourceUnreachable
from lakehouse_assets.sources.offsets import Offsets
from lakehouse_assets.sources.row_source import DELETED, RowSource, Split, client_environment
from lakehouse_assets.wire.work import SourceRange

if TYPE_CHECKING:
    import pyarrow as pa

RAISED: Mapping[str, type[LakehouseError]] = {kind.__name__: kind for kind in (SourceLost, SourceUnreachable, BadValue)}
OF_TASK = re.compile(rf"(?:\w+\.)*({'|'.join(RAISED)}): (.+)")
"""How Spark tells an error that a task raised, of which it keeps the text only."""


@dataclass(frozen=True)
class SplitReader:
    """Reads splits in Spark's Python workers, which it is sent to with what they need to reach the source."""

    source: RowSource
    splits: Sequence[Split]
    schema: pa.Schema
    environment: Mapping[str, str]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Yields the rows of the splits whose numbers the batches have."""
        os.environ.update(self.environment)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self.source.read(self.splits[number], self.schema)


def read_range(
    spark: SparkSession, chosen: SourceRange, position: Offsets | None, columns: StructType
) -> tuple[DataFrame, Offsets]:
    """Returns the rows of a range that are not moved yet, and the position behind them.

    Rows are read once and kept: an upsert meanwhile takes a row out of the range, which a second look would not find.
    position: the table's. columns: of the table. Raises SourceLost, SourceUnreachable and BadValue.
    """
    source, begin = chosen.source, chosen.left(position)
    begin = begin.widened(len(chosen.to.by_partition))
    source.prove(begin)  # before: what follows takes long
    spans = begin.spans(chosen.to)
    more = [StructField(DELETED, BooleanType())] if source.marks_deleted else []
    schema = StructType([*(StructField(field.name, field.dataType) for field in columns), *more])
    splits = [Split(number, *span) for number, span in spans.items()]
    if not splits:
        return spark.createDataFrame([], schema), begin
    read = SplitReader(source, splits, to_arrow_schema(schema), client_environment())
    try:
        numbers = spark.range(0, len(splits), 1, len(splits))
        rows = numbers.mapInArrow(read, schema).localCheckpoint()
    except PythonException as error:
        if found := OF_TASK.search(str(error)):
            raise RAISED[found[1]](found[2]) from None
        raise
    source.prove(begin)
    if problem := source.column_problem(columns.names, may_lack=True):  # a column that came since the plan
        raise SourceLost(problem)
    ends = (max(pair) for pair in zip(begin.by_partition, chosen.to.by_partition, strict=True))
    return rows, source.marked(Offsets(chosen.to.identity, tuple(ends)))
