"""Writes the ``column(…)`` lines of a declaration for a CSV or Parquet file, or for an Iceberg table that is there.

What a column may be is declare/columns.py's.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
from pyarrow import compute, csv, parquet
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException, _pyarrow_to_schema_without_ids
from pyiceberg.schema import Schema

from lakehouse_assets.cli.project import enter_project
from lakehouse_assets.environment.catalog import catalog_problems, load_lake
from lakehouse_assets.environment.settings import Settings, read_settings
from lakehouse_assets.errors import LakehouseError
from lakehouse_assets.type_text import type_text

PARQUET = b"PAR1"
"""The first bytes of each Parquet file (https://parquet.apache.org/docs/file-format/)."""


HEAD = 65_536
"""Bytes that surely hold a header."""
ZERO_IN_FRONT = r"^[+-]?0[0-9]"
"""What no number begins with: a code, such as a postal one, that would lose it."""


def lines_for(source: str) -> str:
    """Returns a line for each column of a file, or of a table of the project's catalog.

    source: the file's path, or the table as namespace.table. Raises LakehouseError and SettingsError.
    """
    if Path(source).is_file():
        return lines_for_file(Path(source))
    if "/" in source or source.count(".") != 1:
        raise LakehouseError(f"there is no file {source}, and a table is named as namespace.table")
    enter_project()
    return lines_for_table(source, read_settings(check=catalog_problems))


def lines_for_file(path: Path) -> str:
    """Returns a line for each column of a CSV, plain or compressed, or of a Parquet file.

    Of a CSV the types are guessed from its first megabyte; digits with a zero in front of them are a text. Raises
    LakehouseError for a file that can't be read, or that has a type which Iceberg lacks, for a CSV that is not in UTF-8
    or has no commas, and OSError.
    """
    with path.open("rb") as file:
        is_parquet = file.read(len(PARQUET)) == PARQUET
    try:
        arrow = parquet.read_schema(path) if is_parquet else _of_csv(path)
        return _lines(_pyarrow_to_schema_without_ids(arrow, downcast_ns_timestamp_to_us=True))
    except (ValueError, KeyError, UnsupportedPyArrowTypeException) as error:  # ArrowInvalid is one; a repeated name
        raise LakehouseError(f"{path}: {error}") from error


def lines_for_table(identifier: str, settings: Settings) -> str:
    """Returns a line for each column of a table in the catalog ``lake``. Raises LakehouseError where there is none."""
    try:
        return _lines(load_lake(settings).load_table(identifier).schema())
    except (NoSuchTableError, NoSuchNamespaceError, ValueError) as error:
        raise LakehouseError(f"{identifier} is neither a file nor a table of the catalog lake") from error


def _of_csv(path: Path) -> pa.Schema:
    with pa.input_stream(path, compression="detect") as stream:
        header = stream.read(HEAD).partition(b"\n")[0]
    if b"," not in header and (other := re.search(rb"[;\t|]", header)):
        raise ValueError(f"its columns lie between {other[0].decode()!r}; read_csv() reads commas")
    with csv.open_csv(path) as reader:
        found = reader.schema
    if unreadable := [field.name for field in found if pa.types.is_binary(field.type)]:
        raise ValueError(f"of {', '.join(unreadable)} there are values that are not UTF-8, as read_csv() reads them")
    as_text = csv.ConvertOptions(column_types=dict.fromkeys(found.names, pa.string()))
    with csv.open_csv(path, convert_options=as_text) as reader:
        first = next(reader, None)
    return pa.schema([field.with_type(_type_of(field.type, first and first.column(field.name))) for field in found])


def _type_of(guessed: pa.DataType, texts: pa.Array | None) -> pa.DataType:
    """Returns the type of a column whose first values are these texts: a guess that a table can have, and keeps all."""
    # That no table can have: of a column without any value, and times of day, which Spark does not know.
    is_text = pa.types.is_null(guessed) or pa.types.is_time(guessed)
    if pa.types.is_integer(guessed) and texts is not None:
        is_text = compute.any(compute.match_substring_regex(texts, ZERO_IN_FRONT)).as_py()
    return pa.string() if is_text else guessed


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
