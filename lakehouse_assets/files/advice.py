"""Names the option that would accept a text that is no value of its type. Each option is tried on the text first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse_assets.files.cell_types import Spelling, arrow_type, read_cells, time_pattern

# The texts, pairs and patterns that are tried, in this order.
NULLS = ("", "NA", "N/A", "n/a", "#N/A", "NULL", "null", "None", "nan", "NaN", "-", "--", ".", "?", r"\N")
BOOLEANS = (("t", "f"), ("T", "F"), ("yes", "no"), ("Yes", "No"), ("YES", "NO"), ("y", "n"), ("Y", "N"), ("1", "0"))
DATES = (
    *("dd.MM.yyyy", "d.M.yyyy", "dd/MM/yyyy", "MM/dd/yyyy", "M/d/yyyy", "d/M/yyyy", "yyyy/MM/dd", "yyyyMMdd"),
    *("dd-MM-yyyy", "dd-MMM-yyyy", "d-MMM-yyyy", "dd-MMM-yy", "d-MMM-yy", "MMM d, yyyy", "MMMM d, yyyy", "MMM-d-yyyy"),
)
CLOCKS = ("HH:mm:ss", "HH:mm", "H:mm", "h:mm a", "h:mm:ss a", "HH:mm:ss.SSS", "HH:mm:ss.SSSSSS")
OTHER_TYPES = {
    "int": ("long", "decimal(38,0)", "double"),
    "long": ("decimal(38,0)", "double"),
    "float": ("double", "decimal(38,9)"),
    "double": ("decimal(38,0)", "decimal(38,18)"),
    "boolean": (),
    "date": ("timestamp", "timestamptz"),
    "timestamp": ("timestamptz", "date"),
    "timestamptz": (),
}
"""Type → the types to try instead, the best first."""
SOME_ZONE = "Europe/Berlin"
"""Stands for the zone of a file's times, which only a person knows."""


def time_patterns(type_: str) -> Iterator[str]:
    """Yields patterns for dates or times that are not in ISO 8601."""
    for date in DATES:
        if type_ == "date":
            yield date
        else:
            yield from (f"{date} {clock}" for clock in CLOCKS)


def takes(texts: pa.StringArray, column: str, type_: str, spelling: Spelling) -> bool:
    """Whether all texts are values of the type, in this spelling."""
    return not pc.any(read_cells(texts, column, arrow_type(type_), spelling)[1]).as_py()


def advice(text: str, column: str, type_: str, spelling: Spelling) -> str:
    """Returns the end of a sentence: the option that takes a text, or the type string."""
    return next(
        (f"; {told}" for told in _advice(text, column, type_, spelling)), "; declare it string to take it as it is"
    )


def _advice(text: str, column: str, type_: str, spelling: Spelling) -> Iterator[str]:
    """Yields advice, the likeliest first: advice() gives only the first."""
    texts = pa.array([text], pa.string())
    if text in NULLS:
        yield f"if it is a missing value, null=[…, {text!r}] takes it"
    if text.strip(" \t") != text and takes(pa.array([text.strip(" \t")]), column, type_, spelling):
        yield "trim=True takes it"
    if type_ == "boolean":
        for pair in BOOLEANS:
            if takes(texts, column, type_, replace(spelling, booleans=pair)):
                yield f"booleans={pair!r} takes it"
    if type_ in ("date", "timestamp", "timestamptz"):
        yield from time_advice(texts, column, type_, spelling)
    numeric = type_ in ("int", "long", "float", "double") or type_.startswith("decimal")
    if numeric:
        yield from type_advice(texts, column, type_, spelling)
    # Other marks are tried only if the caller has given none.
    if numeric and (spelling.decimal, spelling.thousands) == (".", ""):
        for decimal, thousands in ((",", ""), (".", ","), (",", "."), (".", "'"), (".", " ")):
            if takes(texts, column, type_, replace(spelling, decimal=decimal, thousands=thousands)):
                # The default decimal point becomes empty, so that only other marks are named.
                marks = {"decimal": decimal.strip("."), "thousands": thousands}
                yield f"{', '.join(f'{name}={mark!r}' for name, mark in marks.items() if mark)} takes it"
    if not numeric:
        yield from type_advice(texts, column, type_, spelling)


def type_advice(texts: pa.StringArray, column: str, type_: str, spelling: Spelling) -> Iterator[str]:
    """Yields the other types that take the text."""
    # OTHER_TYPES lacks only decimals.
    for other in OTHER_TYPES.get(type_, ("decimal(38,9)", "double")):
        # decimal(38,0) takes 1.0, but would refuse the other fractions of such a column.
        has_fraction = spelling.decimal in texts[0].as_py()
        if takes(texts, column, other, spelling) and not (has_fraction and other == "decimal(38,0)"):
            yield f"declare it {other}"


def time_advice(texts: pa.StringArray, column: str, type_: str, spelling: Spelling) -> Iterator[str]:
    """Yields the patterns or zones that take the text."""
    if type_ == "timestamptz" and not spelling.time_zone:
        local = replace(spelling, time_zone=SOME_ZONE)
        if takes(texts, column, type_, local):
            yield "it has no offset: time_zone='…' takes it as of that zone, or declare it timestamp"
    elif type_ == "timestamptz" and takes(texts, column, "timestamp", spelling):
        yield f"{spelling.time_zone} skips or repeats that time, so it is no instant; declare it timestamp"
    for pattern in time_patterns(type_):
        formats = {**spelling.formats, column: pattern}
        zone = spelling.time_zone or SOME_ZONE
        # matches() is a quick test, so that few patterns are tried with Arrow.
        if time_pattern(pattern).matches(texts[0].as_py()) and takes(
            texts, column, type_, replace(spelling, formats=formats, time_zone=zone)
        ):
            yield f"formats={{{column!r}: {pattern!r}}} takes it"
