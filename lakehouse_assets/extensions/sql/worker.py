"""Runs the query of a SQL step in a worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from lakehouse_assets.extensions.sql.query import Parameter, Query
from lakehouse_assets.step.window import Window

VIEW = "lakehouse_changes_{}"
"""The temporary view that stands for a call of changes()."""


def rows_of(query: Query, spark: SparkSession, window: Window) -> DataFrame:
    """Returns the rows of a query.

    Raises LookupError for a parameter that the table's partitions don't give, and as Spark and Window.changes() do.
    """
    values = parameters_of(window)
    if unknown := {parameter.name for parameter in query.parameters} - values.keys():
        raise LookupError(
            f"the table's partitions give no parameter {', '.join(f':{name}' for name in sorted(unknown))}"
        )
    for at, call in enumerate(query.changes):
        window.changes(call.table).createOrReplaceTempView(VIEW.format(at))
    text = replaced(query, values)
    # Only a query can stand in parentheses: spark.sql() would run any other statement at once.
    return spark.sql(f"SELECT * FROM ({text}\n)", args=dict(bound(query, values)))


def parameters_of(window: Window) -> dict[str, Any]:
    """Returns the values of a window's parameters by name: lists of keys, datetimes and dates."""
    values: dict[str, Any] = {name: [*keys] for name, keys in window.dimensions.items()}
    if window.keys:
        values["keys"] = [*window.keys]
    if window.start is not None and window.end is not None:
        values |= {"start": window.start, "end": window.end}
        values |= {"start_date": window.start_date, "end_date": window.end_date}
    return values


def replaced(query: Query, values: Mapping[str, Any]) -> str:
    """Returns the query's body with views for calls of changes(), and a parameter for each key in ``IN (:keys)``."""
    edits = [(call.start, call.end, VIEW.format(at)) for at, call in enumerate(query.changes)]
    for parameter in query.parameters:
        if _is_expanded(parameter, values):
            names = (f":{parameter.name}_{at}" for at in range(len(values[parameter.name])))
            edits.append((parameter.start, parameter.end, ", ".join(names)))
    begin = query.tokens[0].start
    text = query.body
    for start, end, new in sorted(edits, reverse=True):
        text = text[: start - begin] + new + text[end - begin :]
    return text


def bound(query: Query, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the parameters of replaced(), each with its value."""
    for parameter in query.parameters:
        value = values[parameter.name]
        if _is_expanded(parameter, values):
            yield from ((f"{parameter.name}_{at}", key) for at, key in enumerate(value))
        else:
            yield parameter.name, value


def _is_expanded(parameter: Parameter, values: Mapping[str, Any]) -> bool:
    return parameter.in_list and isinstance(values[parameter.name], list)
