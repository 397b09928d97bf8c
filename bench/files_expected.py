"""The right rows of real files by other readers: pandas without any guess for CSV, Python's json, PyArrow for Parquet.
How to read the files that are not written as most are, was found by looking at them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

WRITTEN: Mapping[str, Mapping[str, Any]] = {
    "anes96/anes96.csv": {"sep": "\t", "quotechar": "'"},
    "anes96/src/anes96.csv": {"sep": " "},
    "breast_cancer.csv": {"header": None, "skiprows": 1},
    "danish_data/data.csv": {"encoding": "utf-8-sig"},
    "diabetes_data_raw.csv.gz": {"header": None, "sep": " "},
    "diabetes_target.csv.gz": {"header": None},
    "digits.csv.gz": {"header": None},
    "E6_jmulti.csv": {"header": None, "sep": " "},
    "sklearn/datasets/data/iris.csv": {"header": None, "skiprows": 1},
    "linnerud_exercise.csv": {"sep": " "},
    "linnerud_physiological.csv": {"sep": " "},
    "modechoice/modechoice.csv": {"sep": ";"},
    "macrodata/src/unemp.csv": {"header": None, "skiprows": 10},
    "scotland/src/scotvote.csv": {"header": None, "sep": " ", "skiprows": 1},
    "spector/spector.csv": {"sep": " ", "quotechar": "'"},
    "wine_data.csv": {"header": None, "skiprows": 1},
}
"""The end of a path → options of pandas.read_csv()."""
NO_TABLE = "scotland/src/scotland_population.csv"
"""Notes with some numbers in them: they have no right rows."""
NAMIBIA = "airportsdata/airports.csv"
"""Where NA is a text; elsewhere it is R's missing value."""
DATES = {
    "elec_equip.csv": "%b-%d-%Y",
    "co2.csv": "%Y%m%d",
    "DM.csv": "%Y%m%d",
    "Pound.csv": "%Y%m%d",
    "Yen.csv": "%Y%m%d",
}
"""Dates that are not written as ISO 8601 has them; those with two digits of a year are texts."""
MISSING = ("", "NA", "N/A")
TRUE, FALSE = ("true", "yes", "y", "t", "1"), ("false", "no", "n", "f", "0")
CODE = re.compile(r"[+-]?0[0-9]")


def problem(path: Path, rows: Sequence[Mapping[str, Any]], rename: Mapping[str, str]) -> str | None:
    """Says in what the rows differ from a file's; None if they are the same. rename: name in the file → in the rows."""
    if str(path).endswith(NO_TABLE):
        return "it is no table"
    if path.suffix in (".csv", ".gz"):
        return _problem_of_texts(path, rows)
    if path.suffix == ".parquet":
        from pyarrow import parquet

        expected = parquet.read_table(path).to_pylist()
    else:
        expected = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
    if len(expected) != len(rows):
        return f"{len(rows)} rows, expected {len(expected)}"
    for number, (right, row) in enumerate(zip(expected, rows, strict=True), start=1):
        if not _alike({rename.get(name, name): value for name, value in right.items()}, row):
            return f"row {number} is {row}, expected {right}"
    return None


def _problem_of_texts(path: Path, rows: Sequence[Mapping[str, Any]]) -> str | None:
    import pandas  # type: ignore[import-untyped]

    options = next((found for end, found in WRITTEN.items() if str(path).endswith(end)), {})
    texts = pandas.read_csv(path, dtype=str, keep_default_na=False, na_filter=False, **options)
    if len(rows) != len(texts):
        return f"{len(rows)} rows, expected {len(texts)}"
    if not rows:
        return None
    if len(rows[0]) != len(texts.columns):
        return f"{len(rows[0])} columns, expected {len(texts.columns)}"
    right = _judge(path)
    for position, name in enumerate(rows[0]):
        pairs = zip(texts.iloc[:, position], (row[name] for row in rows), strict=True)
        for text, value in set(pairs):
            if not right(text, value):
                return f"column {name} has {value!r} for {text!r}"
    return None


def _judge(path: Path) -> Callable[[str, object], bool]:
    """Returns what says whether a value is what a text of the file stands for."""
    na_is_missing, day = not str(path).endswith(NAMIBIA), DATES.get(path.name, "")

    def right(text: str, value: object) -> bool:
        if value is None:
            return text in MISSING and (na_is_missing or not text)
        if isinstance(value, str):
            return value in (text, text.strip()) and not (na_is_missing and text == "NA")
        text = text.strip()
        if isinstance(value, bool):
            return text.lower() in (TRUE if value else FALSE)
        if isinstance(value, date):
            with suppress(ValueError):
                return _instant(value) == _instant(
                    datetime.strptime(text, day) if day else datetime.fromisoformat(text)
                )
            return False
        with suppress(InvalidOperation, ValueError):
            return not CODE.match(text) and (float(text) if isinstance(value, float) else Decimal(text)) == value
        return False

    return right


def _instant(value: date) -> datetime:
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    return value.replace(tzinfo=value.tzinfo or UTC)


def _alike(right: object, value: object) -> bool:
    """Says whether two values of JSON, Parquet or Spark are the same; one that is not there is null."""
    if isinstance(right, Mapping) and isinstance(value, Mapping):
        return all(_alike(right.get(key), value.get(key)) for key in {*right, *value})
    if isinstance(right, Mapping) and isinstance(value, list):  # a map
        return _alike([*right.items()], value)
    if isinstance(right, list | tuple) and isinstance(value, list | tuple):
        return len(right) == len(value) and all(_alike(*pair) for pair in zip(right, value, strict=True))
    if isinstance(value, date):
        with suppress(ValueError):
            right = datetime.fromisoformat(right) if isinstance(right, str) else right
        return isinstance(right, date) and _instant(right) == _instant(value)
    if isinstance(right, float) and isinstance(value, float) and math.isnan(right):
        return math.isnan(value)
    return right == value
