"""Sorts Arrow rows by an Iceberg sort order.

Which orders PyArrow can't sort by is in health/needs_spark.py; which files are written, in rewrite.py.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder


def sort(rows: pa.Table, order: SortOrder, schema: Schema) -> pa.Table:
    """Sorts the rows by the order; equal ones stay as they are.

    schema: that of the rows.
    """
    if order.is_unsorted:
        return rows
    keys: dict[str, pa.ChunkedArray] = {}
    directions: list[tuple[str, str]] = []
    for n, field in enumerate(order.fields):
        column = rows[schema.find_field(field.source_id).name]
        if (rank := _rank(column, field)) is not None:
            keys[f"rank{n}"] = rank
            directions.append((f"rank{n}", "ascending"))
        keys[f"value{n}"] = column
        is_ascending = field.direction is SortDirection.ASC
        directions.append((f"value{n}", "ascending" if is_ascending else "descending"))
    return rows.take(pc.sort_indices(pa.table(keys), directions))


def _rank(column: pa.ChunkedArray, field: SortField) -> pa.ChunkedArray | None:
    """Returns where nulls, numbers and NaNs go with regard to each other; None if there are only numbers.

    PyArrow puts nulls and NaNs at one end; Iceberg has NaN above all numbers, and nulls where the order says.
    """
    is_nan = pc.is_nan(column).fill_null(False) if pa.types.is_floating(column.type) else None
    if not column.null_count and not (is_nan is not None and pc.any(is_nan).as_py()):
        return None
    null = 0 if field.null_order is NullOrder.NULLS_FIRST else 3
    number, nan = (1, 2) if field.direction is SortDirection.ASC else (2, 1)
    of_numbers = pa.scalar(number, pa.int8()) if is_nan is None else pc.if_else(is_nan, _small(nan), _small(number))
    return pc.if_else(column.is_null(), _small(null), of_numbers)


def _small(number: int) -> pa.Scalar:
    return pa.scalar(number, pa.int8())
