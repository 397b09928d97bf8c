"""Tests of steps: ``run_step()`` computes a table's rows from inputs that the test gives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakehouse_assets.declare.table import Table

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN = 10
"""The most rows of a kind that a message shows."""


@dataclass(frozen=True)
class StepResult:
    """The rows that a step has computed."""

    table: Table
    rows: list[dict[str, Any]]
    """By column; in the order in which Spark returned them."""

    def expect_rows(
        self, expected: Sequence[Mapping[str, Any]], *, in_order: bool = False, tolerance: float = 0.0
    ) -> None:
        """Compares the rows, each in the columns that its expected one names.

        in_order: whether their order counts. tolerance: the largest difference of floats that are the same. Raises
        AssertionError with the rows that are missing or not expected.
        """
        names = [*dict.fromkeys(name for row in expected for name in row)] or [*(self.rows[0] if self.rows else ())]
        if unknown := [name for name in names if self.rows and name not in self.rows[0]]:
            raise AssertionError(f"{self.table.identifier} has no column {', '.join(unknown)}")
        found, wanted = self.rows, [*expected]
        missing, left = [], list(found)
        for row in wanted:
            at = next((n for n, other in enumerate(left) if _same(row, other, tolerance)), None)
            missing += [row] if at is None else []
            left[at : at + 1 if at is not None else 0] = []
        told = [*_told("missing", missing), *_told("not expected", left, names)]
        if not told and in_order and not all(map(_same, wanted, found, [tolerance] * len(found))):
            told = ["the same rows in another order", *_told("found", found, names)]
        if told:
            head = f"{self.table.identifier}: {len(found)} rows, expected {len(wanted)}"
            raise AssertionError("\n".join([head, *told]))


def run_step(
    table: Table,
    keys: str | Sequence[str] = (),
    inputs: Mapping[Table | str, Any] | None = None,
    *,
    changes: Mapping[Table | str, Any] | None = None,
    landing: str | Path = "",
) -> StepResult:
    """Computes a table's rows for some partitions, and checks them as its audit does.

    keys: of Dagster's partitions. inputs: rows by table, as dicts, as a frame of Polars, pandas or Arrow, or as CSV
    text with a header. Those of a declared table get its types, and null in columns that they lack; those of a name, as
    in ``"finance.rates"``, get the types of their values. changes: rows for ``changes()``, maybe with ``_change_type``.
    landing: the folder with delivered files. The tables are those of this call only; the first call of a process
    starts Spark. Raises AssertionError if the rows fail a declared check, have a null in a required column, or one key
    twice; SetupError without Java or jars; and as the step.

    Examples:
        >>> from lakehouse_assets.testing import run_step
        >>> run_step.__name__
        'run_step'
    """
    from lakehouse_assets.testing.worker import compute

    one = (keys,) if isinstance(keys, str) else tuple(keys)
    table.alignment.region(one)  # raises UnknownPartitions
    given = {_name(of): _typed(of, rows) for of, rows in (inputs or {}).items()}
    changed = {_name(of): _typed(of, rows) for of, rows in (changes or {}).items()}
    rows, failed = compute(table, one, given, changed, str(landing))
    if problems := [*failed, *_nulls(table, rows)]:
        raise AssertionError("\n".join([f"{table.identifier}: its audit would fail", *problems]))
    return StepResult(table, rows.to_pylist())


def _name(of: Table | str) -> str:
    return of.removeprefix("lake.") if isinstance(of, str) else of.identifier


def _typed(of: Table | str, rows: Any) -> pa.Table:
    """Returns rows as Arrow, with the types of a declared table. Raises ValueError for values of another type."""
    import pyarrow as pa

    schema = None
    if isinstance(of, Table):
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        arrow = schema_to_pyarrow(of.schema, include_field_ids=False)
        schema = pa.schema([field.with_nullable(True) for field in arrow])
    if isinstance(rows, str):
        from io import BytesIO

        from pyarrow import csv

        types = csv.ConvertOptions(column_types=schema, strings_can_be_null=True)
        frame = csv.read_csv(BytesIO(rows.strip().encode()), convert_options=types)
    elif isinstance(rows, pa.Table):
        frame = rows
    elif hasattr(rows, "to_arrow"):  # Polars
        frame = rows.to_arrow()
    elif hasattr(rows, "to_dict"):  # pandas
        frame = pa.Table.from_pandas(rows, preserve_index=False)
    else:
        frame = _of_dicts(rows, schema)
    return frame if schema is None else _completed(frame, schema, _name(of))


def _of_dicts(rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None) -> pa.Table:
    import pyarrow as pa

    names = [*dict.fromkeys(name for row in rows for name in row)]
    arrays = []
    for name in names:
        values = [row.get(name) for row in rows]
        try:
            arrays.append(pa.array(values, schema.field(name).type if schema and name in schema.names else None))
        except (pa.ArrowInvalid, pa.ArrowTypeError):  # such as texts for dates
            arrays.append(pa.array(values))
    return pa.table(arrays, names)


def _completed(frame: pa.Table, schema: pa.Schema, name: str) -> pa.Table:
    """Returns all columns of the schema, with its types; the others keep theirs, as changes have them."""
    import pyarrow as pa

    arrays: dict[str, Any] = {}
    for field in schema:
        if field.name not in frame.column_names:
            arrays[field.name] = pa.nulls(frame.num_rows, field.type)
            continue
        try:
            arrays[field.name] = frame[field.name].cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ValueError(f"{name}.{field.name}: {error}") from None
    unknown = [column for column in frame.column_names if column not in arrays]
    if others := [column for column in unknown if not column.startswith("_")]:
        raise ValueError(f"{name} has no column {', '.join(others)}")
    return pa.table(arrays | {column: frame[column] for column in unknown})


def _same(one: Mapping[str, Any], other: Mapping[str, Any], tolerance: float) -> bool:
    return all(_same_value(value, other[name], tolerance) for name, value in one.items())


def _same_value(one: Any, other: Any, tolerance: float) -> bool:
    if isinstance(one, float | int) and isinstance(other, float) and not isinstance(one, bool):
        return math.isclose(one, other, rel_tol=0.0, abs_tol=tolerance) or (math.isnan(one) and math.isnan(other))
    # A test may write what JSON and CSV have.
    if isinstance(one, str) and isinstance(other, date | datetime | Decimal):
        return type(other)(one) == other if isinstance(other, Decimal) else type(other).fromisoformat(one) == other
    return bool(one == other)


def _told(what: str, rows: Sequence[Mapping[str, Any]], names: Sequence[str] | None = None) -> list[str]:
    """Returns lines for rows. names: their columns to show; None for all."""
    if not rows:
        return []
    lines = ["  " + ", ".join(f"{name}={row[name]!r}" for name in names or row) for row in rows[:SHOWN]]
    return [f"{what}:", *lines, *([f"  and {len(rows) - SHOWN} more"] if len(rows) > SHOWN else [])]


def _nulls(table: Table, rows: pa.Table) -> list[str]:
    required = [column.name for column in table.columns if column.required]
    counts = {name: rows[name].null_count for name in required if rows[name].null_count}
    return [f"the required column {name} is null in {count} of {rows.num_rows} rows" for name, count in counts.items()]
