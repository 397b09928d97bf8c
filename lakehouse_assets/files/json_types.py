"""Tells the columns of a JSON file: the smallest type for each field that takes all its values so far.

What a type takes is json_values.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from lakehouse_assets.files.advice import takes
from lakehouse_assets.files.cell_types import Spelling
from lakehouse_assets.files.delivered import NotUnpacked, unpacked
from lakehouse_assets.files.json_text import Number, kind_of, objects_of
from lakehouse_assets.type_text import NAME

HEAD = 2**20
"""Characters of a file from which its columns are told."""
OF_INTEGERS, OF_REALS = ("long", "decimal(38,0)"), ("double", "decimal(38,18)")
OF_STRINGS = ("date", "timestamp", "timestamptz", "string")


def columns_of_json(location: str, encoding: str = "utf-8") -> list[tuple[str, str]]:
    """Returns the fields of a file's first megabyte as columns are declared: name → type, by where they come first.

    location: a path, or a URL. Raises ValueError for a file that read_json() does not read, and for a field whose
    values have no type in common; OSError.
    """
    objects, size = [], 0
    try:
        with unpacked(location) as content:
            for line in objects_of(content, encoding):
                if isinstance(line.found, str):
                    raise ValueError(f"line {line.number} {line.found}")
                objects.append(line.found)
                size += line.size
                if size >= HEAD:
                    break
    except NotUnpacked as error:
        raise ValueError(str(error)) from None
    if not objects:
        raise ValueError("it has no object")
    return [*_members(objects, "").items()]


def _members(objects: Sequence[dict[str, Any]], path: str) -> dict[str, str]:
    names = dict.fromkeys(chain.from_iterable(objects))
    return {name: _type_of([one.get(name) for one in objects], f"{path}{name}") for name in names}


def _type_of(values: Sequence[Any], path: str) -> str:
    """Returns the smallest type that takes the values, nulls among them. Raises ValueError if none does."""
    found = [value for value in values if value is not None]
    kinds = {kind_of(value): type(value) for value in found}
    if len(kinds) > 1:
        raise ValueError(f"field {path} is {' and '.join(sorted(kinds))}, which no type takes together{_way_out(path)}")
    match next(iter(kinds.values()), str).__name__:
        case "bool":
            return "boolean"
        case "list":
            return f"list<{_type_of([*chain.from_iterable(found)], path)}>"
        case "dict":
            return _of_objects(found, path)
        case "Number":
            whole = all(number.lstrip("-").isdecimal() for number in found)
            return _smallest(found, OF_INTEGERS if whole else OF_REALS, path)
    return _smallest(found, OF_STRINGS, path) if found else "string"


def _of_objects(objects: Sequence[dict[str, Any]], path: str) -> str:
    """Returns a struct, or a map if names are none that a struct can have."""
    names = dict.fromkeys(chain.from_iterable(objects))
    is_struct = names and all(map(NAME.fullmatch, names)) and len({name.lower() for name in names}) == len(names)
    if not is_struct:
        return f"map<string, {_type_of([*chain.from_iterable(one.values() for one in objects)], path)}>"
    return f"struct<{', '.join(f'{name}: {type_}' for name, type_ in _members(objects, f'{path}.').items())}>"


def _smallest(values: Sequence[Number | str], types: Sequence[str], path: str) -> str:
    texts = pa.array([value.encode(errors="replace").decode() for value in values], pa.string())
    for type_ in types:
        if type_ == "string" or takes(texts, path, type_, Spelling()):
            return type_
    raise ValueError(f"field {path} has numbers such as {values[0]}, which no type takes together{_way_out(path)}")


def _way_out(path: str) -> str:
    return f"; ignore=[{path!r}] leaves it out"
