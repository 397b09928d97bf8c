"""Checks the values of a declaration's options by the annotations of its classes, and those of table properties.

What else a value of the right type may be is decided beside each option; what tuning declares, in tuning.py.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

# https://iceberg.apache.org/docs/1.12.0/configuration/
MODES, LEVELS = ("none", "hash", "range"), ("serializable", "snapshot")
PLANNING = ("auto", "local", "distributed")
WORDS = {
    **{f"write.{verb}distribution-mode": MODES for verb in ("", "delete.", "update.", "merge.")},
    **{f"write.{verb}.isolation-level": LEVELS for verb in ("delete", "update", "merge")},
    **{f"write.{verb}.mode": ("copy-on-write", "merge-on-read") for verb in ("delete", "update")},
    **{f"read.{kind}-planning-mode": PLANNING for kind in ("data", "delete")},
    "write.parquet.compression-codec": ("zstd", "brotli", "lz4", "lz4_raw", "lzo", "gzip", "snappy", "uncompressed"),
    "write.orc.compression-codec": ("zstd", "lz4", "lzo", "zlib", "snappy", "none"),
    "write.metadata.compression-codec": ("none", "gzip"),
}
"""The values that a property may have, by its name. Iceberg takes them in capitals as well."""
NAMES = {bool: "True or False", int: "a whole number", float: "a number"}
"""How messages call a type that is not called by its annotation."""
NUMBER = re.compile(
    r"write\.(delete\.)?target-file-size-bytes|write\.spark\.advisory-partition-size-bytes"
    r"|write\.(delete\.)?parquet\.(row-group-size-bytes|page-size-bytes|page-row-limit|dict-size-bytes)"
    r"|write\.orc\.(stripe|block)-size-bytes|read\.split\.(target-size|planning-lookback|open-file-cost)"
    r"|write\.metadata\.previous-versions-max|commit\.retry\.num-retries|commit\.manifest\.target-size-bytes"
)


def mistyped(declared: Any, path: str = "") -> Iterator[str]:
    """Finds the options that have a value of another type than their annotation, each as a sentence that names it.

    declared: a dataclass; dataclasses that its options hold are looked into. path: its place, such as ``arrivals.``
    """
    # pydantic is no help here: it converts values, and makes Dagster's named tuples of any tuple.
    hints = _hints(declared.__class__)
    for field in fields(declared):
        value = getattr(declared, field.name)
        within = [
            found
            for held in (value if type(value) in (list, tuple) else (value,))
            if is_dataclass(held) and not isinstance(held, type)
            for found in mistyped(held, f"{path}{field.name}.")
        ]
        yield from within
        # What a write mode is, its properties tell, which a value of another type within it keeps from being read.
        if not within and not _fits(value, hints[field.name]):
            yield f"{path}{field.name} is {reprlib.repr(value)}, {_wanted(hints[field.name], str(field.type))}"


@lru_cache(maxsize=64)
def _hints(kind: type) -> dict[str, Any]:
    """Reads the annotations of a class; once, as each table needs them."""
    return get_type_hints(kind)


def _wanted(hint: Any, annotation: str) -> str:
    """Says what an option takes, to end a sentence."""
    if get_origin(hint) is Literal:
        return f"known are {', '.join(get_args(hint))}"
    one = next(iter(get_args(hint)), hint) if get_origin(hint) in (Union, UnionType) else hint
    kind = get_origin(one) or one
    known = [
        f"known are {', '.join(of)}" for of in (kind, *get_args(one)) if isinstance(of, type) and issubclass(of, Enum)
    ]
    if issubclass(kind, Collection) and get_args(one):  # neither text nor a named tuple
        shape = "dict" if issubclass(kind, Mapping) else "list"
        return "; ".join([f"it must be a {shape} of the type {annotation}", *known])
    return known[0] if known else f"it must be {NAMES.get(kind, f'of the type {annotation}')}"


def _fits(value: Any, hint: Any) -> bool:
    """Says whether a value is of the annotated type.

    Neither a string nor a named tuple, as Dagster's keys are, is a list; no class is a value; True is no number; an
    enum's value counts as its member.
    """
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        return any(_fits(value, one) for one in arguments)
    if kind is Literal:
        return value in arguments
    if issubclass(kind, Enum):
        return value in [*kind]
    if kind in (int, float):
        return type(value) in (int, kind)
    if not isinstance(value, kind) or isinstance(value, type):
        return False
    if issubclass(kind, Mapping):
        return all(_fits(part, of) for item in value.items() for part, of in zip(item, arguments, strict=True))
    if issubclass(kind, Collection) and arguments:
        is_list = not (isinstance(value, str) or hasattr(value, "_fields"))
        return is_list and all(_fits(part, arguments[0]) for part in value)
    return True


def property_problems(properties: Mapping[str, str]) -> Iterator[str]:
    """Yields a problem for each value that is none of the words known for its property, or no whole number."""
    for name, value in properties.items():
        if name in WORDS and value.lower() not in WORDS[name]:
            yield f"properties has {name}={value!r}, known are {', '.join(WORDS[name])}"
        elif NUMBER.fullmatch(name) and not re.fullmatch(r"[+-]?\d+", value, re.ASCII):
            yield f"properties has {name}={value!r}, it must be a whole number"
