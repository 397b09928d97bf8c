"""Checks that the values of a declaration's options have the types that its classes are annotated with.

What a value of the right type may be is decided beside each option.
"""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

# pydantic is no help here: it converts values, and makes Dagster's named tuples of any tuple.


def mistyped(declared: Any, path: str = "") -> Iterator[str]:
    """Finds the options that have a value of another type than their annotation, each as a sentence that names it.

    declared: a dataclass; dataclasses that its options hold are looked into. path: its place, such as ``arrivals.``
    """
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
            found = reprlib.repr(value)
            yield f"{path}{field.name} has a value of another type than it takes: {found}, expected {field.type}"


@lru_cache(maxsize=64)
def _hints(kind: type) -> dict[str, Any]:
    """Reads the annotations of a class; once, as each table needs them."""
    return get_type_hints(kind)


def _fits(value: Any, hint: Any) -> bool:
    """Says whether a value is of the annotated type.

    Neither a string nor a named tuple, as Dagster's keys are, is a list; True is no number; an enum's value counts as
    its member.
    """
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        return any(_fits(value, one) for one in arguments)
    if issubclass(kind, Enum):
        return value in [*kind]
    if kind in (int, float):
        return type(value) in (int, kind)
    if not isinstance(value, kind):
        return False
    if issubclass(kind, Mapping):
        return all(_fits(part, of) for item in value.items() for part, of in zip(item, arguments, strict=True))
    if issubclass(kind, Collection) and arguments:
        is_list = not (isinstance(value, str) or hasattr(value, "_fields"))
        return is_list and all(_fits(part, arguments[0]) for part in value)
    return True
