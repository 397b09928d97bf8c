"""Runs queries beside Spark: that of a SQL step, and one that a person asks."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import date, time
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from lakehouse_assets.environment.catalog import catalog_properties
from lakehouse_assets.environment.catalog_in_spark import LAKE
from lakehouse_assets.environment.settings import worker_settings
from lakehouse_assets.environment.spark_setup import spark_conf
from lakehouse_assets.extensions.sql.query import Parameter, Query
from lakehouse_assets.extensions.sql.question import FOLDER, Answer, Question
from lakehouse_assets.step.window import Window
from lakehouse_assets.worker.failure import describe
from lakehouse_assets.worker.session import open_lake, start

VIEW = "lakehouse_changes_{}"
"""The temporary view that stands for a call of changes()."""


class QueryRefused(RuntimeError):
    """Spark can't run a query."""


def rows_of(query: Query, spark: SparkSession, window: Window, file: str) -> DataFrame:
    """Returns the rows of a query. file: for messages.

    Raises QueryRefused with the place in the file, LookupError for a parameter that the table's partitions don't give,
    and as Window.changes() does.
    """
    values = parameters_of(window)
    if unknown := {parameter.name for parameter in query.parameters} - values.keys():
        raise LookupError(
            f"the table's partitions give no parameter {', '.join(f':{name}' for name in sorted(unknown))}"
        )
    for at, call in enumerate(query.changes):
        window.changes(call.table).createOrReplaceTempView(VIEW.format(at))
    try:
        return _run(spark, replaced(query, values), dict(bound(query, values)))
    except AnalysisException as error:
        raise QueryRefused(f"{file}: {_first_line(error)}") from None


def _run(spark: SparkSession, text: str, arguments: Mapping[str, Any]) -> DataFrame:
    """Runs a query. Raises AnalysisException for a statement that changes something: spark.sql() would run it."""
    parser = spark._jsparkSession.sessionState().sqlParser()
    # Only a query can stand in parentheses. First without, so that an error has the place in the query's own text.
    for parsed in (text, f"SELECT * FROM (\n{text}\n)"):
        parser.parsePlan(parsed)
    return spark.sql(text, args=dict(arguments))


def _first_line(error: Exception) -> str:
    """Returns an error of Spark without the query or the plan, which are below its first line."""
    line: str = describe(error)["message"].partition("\n")[0]
    return line


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
    text = query.body
    for at, end, new in sorted(edits, reverse=True):
        text = text[:at] + new + text[end:]
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


def answer(start_session: Callable[[Mapping[str, str]], SparkSession], _: float) -> int:
    """Answers the question in the folder that FOLDER names. Returns the exit status, 0."""
    folder = Path(os.environ[FOLDER])
    question = Question.from_json((folder / Question.FILE).read_text())
    failure = None
    try:
        rows = _run(_lake_session(start_session, question), question.text, {})
        if question.output:
            _write(rows.toArrow(), Path(question.output))
        else:
            table = rows.limit(question.limit + 1).toArrow()
            with pa.OSFile(str(folder / Answer.ROWS), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
    except Exception as error:
        failure = _first_line(error)
    (folder / Answer.FILE).write_text(Answer(failure).to_json())
    return 0  # what a refused query leaves in the JVM is looked at anyway


def _lake_session(start_session: Callable[[Mapping[str, str]], SparkSession], question: Question) -> SparkSession:
    """Returns a session whose default catalog is the lake."""
    settings = worker_settings()
    spark, secrets = start(spark_conf(settings, {}), start_session)
    open_lake(spark, secrets, catalog_properties(settings), lambda: question.tables)
    spark.catalog.setCurrentCatalog(LAKE)
    return spark


def _write(rows: pa.Table, file: Path) -> None:
    """Writes rows to a file in the format of its name. Raises ValueError for rows that it can't hold, OSError."""
    if twice := sorted({name for name in rows.column_names if rows.column_names.count(name) > 1}):
        raise ValueError(f"the result has several columns {', '.join(twice)}: name them by AS")
    nested = [field.name for field in rows.schema if pa.types.is_nested(field.type) or pa.types.is_duration(field.type)]
    if nested and file.suffix == ".csv":
        raise ValueError(f"CSV can't hold {', '.join(nested)}: write .json or .parquet")
    new = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        if file.suffix == ".parquet":
            import pyarrow.parquet

            pyarrow.parquet.write_table(rows, new)
        elif file.suffix == ".csv":
            import pyarrow.csv

            pyarrow.csv.write_csv(rows, new)
        else:
            with new.open("w") as lines:
                for row in rows.to_pylist():
                    lines.write(json.dumps(_plain(row), ensure_ascii=False, allow_nan=False) + "\n")
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)


def _plain(value: Any) -> Any:
    """Returns a value as JSON has it: decimals, times, NaN and infinities as text, bytes in hexadecimal digits."""
    match value:
        case dict():
            return {str(name): _plain(of) for name, of in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
        case bytes():
            return value.hex()
        case date() | time():
            return value.isoformat()
        case float() if not math.isfinite(value):
            return str(value)
        case None | bool() | int() | float() | str():
            return value
    return str(value)
