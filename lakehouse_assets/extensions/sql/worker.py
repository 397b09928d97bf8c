"""Runs queries beside Spark: that of a SQL step, and one that a person asks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lakehouse_assets.environment.catalog import catalog_properties
from lakehouse_assets.environment.catalog_in_spark import LAKE, catalog_type, hadoop_s3, spark_catalogs
from lakehouse_assets.environment.settings import worker_settings
from lakehouse_assets.environment.spark_setup import spark_conf
from lakehouse_assets.extensions.sql.query import Parameter, Query
from lakehouse_assets.extensions.sql.question import FOLDER, Answer, Question
from lakehouse_assets.step.window import Window
from lakehouse_assets.worker.failure import describe
from lakehouse_assets.worker.session import configure, register_inputs, start

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
    for at, end, new in sorted(edits, reverse=True):
        text = text[: at - begin] + new + text[end - begin :]
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
    """Answers the question in the folder that FOLDER names. Returns the exit status: 0 also if Spark refuses it."""
    folder = Path(os.environ[FOLDER])
    question = Question.from_json((folder / Question.FILE).read_text())
    failure, status = None, 0
    try:
        rows = _open_lake(start_session, question).sql(f"SELECT * FROM ({question.text}\n)")
        if question.output:
            _write(rows.toArrow(), Path(question.output))
        else:
            table = rows.limit(question.limit + 1).toArrow()
            with pa.OSFile(str(folder / Answer.ROWS), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
    except Exception as error:
        # Below its first line, Spark shows the query or its plan.
        failure, _, _ = describe(error)["message"].partition("\n")
        status = int(not isinstance(error, PySparkException))
    (folder / Answer.FILE).write_text(Answer(failure).to_json())
    return status


def _open_lake(start_session: Callable[[Mapping[str, str]], SparkSession], question: Question) -> SparkSession:
    """Returns a session whose default catalog is the lake: a REST catalog itself, of others the question's tables."""
    settings = worker_settings()
    properties = catalog_properties(settings)
    live = catalog_type(properties)[0] == "rest"
    spark, secrets = start(spark_conf(settings, {}), start_session)
    configure(spark, secrets | spark_catalogs(properties, live=live) | hadoop_s3(properties))
    if not live:
        register_inputs(spark, question.tables)
    spark.catalog.setCurrentCatalog(LAKE)
    return spark


def _write(rows: pa.Table, file: Path) -> None:
    """Writes rows to a file in the format of its name. Raises OSError, and pa.ArrowInvalid for nested values in CSV."""
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
                    lines.write(json.dumps(row, ensure_ascii=False, default=_plain) + "\n")
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)


def _plain(value: Any) -> Any:
    """Returns a value that JSON lacks: decimals and times as text, bytes in hexadecimal digits."""
    if isinstance(value, bytes):
        return value.hex()
    return str(value) if isinstance(value, Decimal) else value.isoformat()
