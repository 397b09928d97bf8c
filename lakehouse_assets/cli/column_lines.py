"""Writes the ``column(…)`` lines and reader's call for a file, or a table's lines."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.env_reader import SettingsError
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.errors import LakehouseError
from lakehouse_assets.files.csv_text import MalformedFile
from lakehouse_assets.files.delivered import KEY, PACKED, NotUnpacked
from lakehouse_assets.files.parquet_rows import columns_of_parquet, schema_in
from lakehouse_assets.files.sniff import clean_names, columns_of_json, sniff
from lakehouse_assets.type_text import type_text

PARQUET = b"PAR1"
"""The first bytes of each Parquet file (https://parquet.apache.org/docs/file-format/)."""
KEY_IN_NAME = re.compile(r"\d{4}-\d{2}(-\d{2}([-T]\d{2}:?\d{2})?)?")
"""Finds the partition key in a file's or folder's name: a month, a day or an hour."""
# A longer call is broken into lines.
LINE_LENGTH = 100


@dataclass(frozen=True)
class Found:
    """A file's columns and how to read it."""

    reader: str
    """``read_csv``, ``read_json`` or ``read_parquet``."""
    columns: Mapping[str, str]
    """Column → Iceberg type."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options that differ from the reader's defaults, except ``files``."""
    remarks: Sequence[str] = ()
    """Sentences on what the file does not tell."""
    folder: str = ""
    """The name of the file's folder, as in the domain's part of the drop zone."""
    files: str = ""
    """The pattern of the file names; empty for the reader's default."""
    required: Sequence[str] = ()
    """The columns that the file declares non-null."""
    name: str = ""
    """If the path has no partition key: the file's name, which the call then reads in place of the window's keys."""

    @property
    def text(self) -> str:
        """The declaration's lines and the call."""
        required = dict.fromkeys(self.required, ", required=True")
        lines = [
            f"column({_quoted(name)}, {_quoted(type_)}{required.get(name, '')}),"
            for name, type_ in self.columns.items()
        ]
        remarks = [f"# {remark}" for remark in self.remarks]
        return "\n".join([*lines, "", *remarks, self.call])

    @property
    def call(self) -> str:
        """The call for a step."""
        schema = [f"{_quoted(name)}: {_quoted(type_)}" for name, type_ in self.columns.items()]
        names = f"[{_quoted(self.name)}]" if self.name else "window.keys"
        files = {"files": self.files} if self.files else {}
        options = [f"{name}={_literal(value)}" for name, value in (files | dict(self.options)).items()]
        folder = f'f"{{window.landing}}/{self.folder}"'
        parts = ["spark", folder, names, f"{{{', '.join(schema)}}}", *options]
        whole = f"{self.reader}({', '.join(parts)})"
        if len(whole) <= LINE_LENGTH:
            return whole
        body = "".join(f"        {one},\n" for one in schema)
        return (
            f"{self.reader}(\n    spark,\n    {folder},\n    {names},\n    {{\n{body}    }},\n"
            + "".join(f"    {option},\n" for option in options)
            + ")"
        )


def look_at(path: Path) -> Found:
    """Returns the columns of a CSV, JSON or Parquet file, plain or compressed, and how to read it.

    Raises LakehouseError for an unreadable file or unsupported type, and OSError.
    """
    path = path.absolute()
    with path.open("rb") as file:
        is_parquet = file.read(len(PARQUET)) == PARQUET
    # The name without the suffix of a compression. PACKED also has the empty suffix.
    plain = path.name
    for ending in filter(None, PACKED):
        plain = plain.removesuffix(ending)
    try:
        if is_parquet:
            found = _renamed("read_parquet", columns_of_parquet(str(path)), path, plain)
            # Column → its name in the file.
            before = {column: name for name, column in found.options.get("rename", {}).items()}
            schema = schema_in(str(path))
            # "[ns" is in the text of Arrow's types of times in nanoseconds.
            times = "nanoseconds can be read only if they are whole microseconds"
            return replace(
                found,
                remarks=[times] if any("[ns" in str(one.type) for one in schema) else [],
                required=[name for name in found.columns if not schema.field(before.get(name, name)).nullable],
            )
        if plain.endswith((".json", ".jsonl", ".ndjson")):
            of_json = columns_of_json(str(path))
            found = _renamed("read_json", [*of_json.columns.items()], path, plain)
            return replace(found, remarks=of_json.remarks)
        sniffed = sniff(path)
    except MalformedFile as error:
        place = f", line {error.line}" if error.line else ""
        raise LakehouseError(f"{path}{place}: it {error.problem}") from error
    except (ValueError, NotUnpacked) as error:
        raise LakehouseError(f"{path}: {error}") from error
    return Found("read_csv", sniffed.columns, sniffed.options, sniffed.remarks, **_place(path, plain, ".csv"))


def lines_for_table(identifier: str, settings: Settings) -> str:
    """Returns the lines for a table of ``lake``. Raises LakehouseError if there is none."""
    try:
        columns = load_lake(settings).load_table(identifier).schema().fields
    except SettingsError:  # a home that was moved, for example
        raise
    except (NoSuchTableError, NoSuchNamespaceError, ValueError) as error:
        raise LakehouseError(f"{identifier} is neither a file nor a table in the catalog lake") from error
    lines = []
    for one in columns:
        arguments = [_quoted(one.name), _quoted(type_text(one.field_type))]
        if one.doc:
            arguments.append(_quoted(one.doc))
        if one.required:
            arguments.append("required=True")
        lines.append(f"column({', '.join(arguments)}),")
    return "\n".join(lines)


def _renamed(reader: str, columns: Sequence[tuple[str, str]], path: Path, plain: str) -> Found:
    names = [name for name, _ in columns]
    clean = clean_names(names)
    rename = {old: new for old, new in zip(names, clean, strict=True) if old != new}
    types = dict(zip(clean, (type_ for _, type_ in columns), strict=True))
    default = f".{reader.removeprefix('read_')}"
    return Found(reader, types, {"rename": rename} if rename else {}, **_place(path, plain, default))


def _place(path: Path, plain: str, default: str) -> dict[str, str]:
    """Returns Found's folder, files and name. If a name has several keys, the last one counts.

    plain: the file's name without a compression's suffix. default: the reader's suffix.
    """
    folder, last = path.absolute().parent, plain
    if found := [*KEY_IN_NAME.finditer(last)]:
        begin, end = found[-1].span()
        files = f"{last[:begin]}{KEY}{last[end:]}"
        return {"folder": folder.name, "files": "" if files == KEY + default else files}
    if found := [*KEY_IN_NAME.finditer(folder.name)]:
        begin, end = found[-1].span()
        files = f"{folder.name[:begin]}{KEY}{folder.name[end:]}/*{Path(last).suffix}"
        return {"folder": folder.parent.name, "files": files}
    name = Path(last)
    return {"folder": folder.name, "name": name.stem, "files": "" if name.suffix == default else KEY + name.suffix}


def _quoted(text: str) -> str:
    # JSON's strings are Python's too, with the double quotes that formatters want.
    return json.dumps(text, ensure_ascii=False)


def _literal(value: object) -> str:
    match value:
        case str():
            return _quoted(value)
        case dict():
            return f"{{{', '.join(f'{_literal(name)}: {_literal(one)}' for name, one in value.items())}}}"
        case list():
            return f"[{', '.join(map(_literal, value))}]"
    return repr(value)
