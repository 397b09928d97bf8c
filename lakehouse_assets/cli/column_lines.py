"""Writes the ``column(…)`` lines of a declaration for a CSV or Parquet file, or for an Iceberg table that is there.

What a column may be is declare/columns.py's.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
from pyarrow import csv, parquet
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException, _pyarrow_to_schema_without_ids
from pyiceberg.schema import Schema

from lakehouse_assets.declare.columns import type_text
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.errors import LakehouseError

PARQUET = b"PAR1"
"""The first bytes of each Parquet file (https://parquet.apache.org/docs/file-format/)."""


def lines_for_file(path: Path) -> str:
    """Returns a line for each column of a CSV, plain or compressed, or of a Parquet file.

    Of a CSV the types are guessed from its first megabyte. Raises LakehouseError for a file that can't be read, or that
    has a type which Iceberg lacks, and OSError.
    """
    with path.open("rb") as file:
        is_parquet = file.read(len(PARQUET)) == PARQUET
    try:
        arrow = parquet.read_schema(path) if is_parquet else _of_csv(path)
        return _lines(_pyarrow_to_schema_without_ids(arrow, downcast_ns_timestamp_to_us=True))
    except (ValueError, UnsupportedPyArrowTypeException) as error:  # ArrowInvalid is one, as is a repeated name
        raise LakehouseError(f"{path}: {error}") from error


def lines_for_table(identifier: str, settings: Settings) -> str:
    """Returns a line for each column of a table in the catalog ``lake``. Raises LakehouseError where there is none."""
    try:
        return _lines(load_lake(settings).load_table(identifier).schema())
    except (NoSuchTableError, NoSuchNamespaceError, ValueError) as error:
        raise LakehouseError(f"{identifier} is neither a file nor a table of the catalog lake") from error


def _of_csv(path: Path) -> pa.Schema:
    with csv.open_csv(path) as reader:
        found = reader.schema
    # Types that no table can have: of a column without any value, and times of day, which Spark does not know.
    return pa.schema(
        [
            field.with_type(pa.string()) if pa.types.is_null(field.type) or pa.types.is_time(field.type) else field
            for field in found
        ]
    )


def _lines(schema: Schema) -> str:
    lines = []
    for field in schema.fields:
        arguments = [json.dumps(field.name, ensure_ascii=False), json.dumps(type_text(field.field_type))]
        if field.doc:
            arguments.append(json.dumps(field.doc, ensure_ascii=False))
        if field.required:
            arguments.append("required=True")
        lines.append(f"column({', '.join(arguments)}),")
    return "\n".join(lines)
