"""Arrow types and arrays for declared types, nested ones included.

The elements of all lists of a column are converted together, as one array; in_lists() and the like then find to which
row a wrong element belongs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyiceberg.types import IcebergType, ListType, MapType, StructType

from lakehouse_assets.type_text import type_text


@dataclass(frozen=True)
class WrongValue:
    """A value that is none of its type."""

    row: int
    """From 0, among the values that were converted together."""
    place: str
    """Where it is within its column's value, such as ``.b[3]``; empty if it is the whole value."""
    told: str
    """What is wrong with it, for a message."""


def nested_arrow_type(type_: IcebergType, leaf: Callable[[str], pa.DataType]) -> pa.DataType:
    """Returns Arrow's type. leaf: returns Arrow's type for the text of a type that is not nested, or raises."""
    match type_:
        case ListType():
            return pa.list_(nested_arrow_type(type_.element_type, leaf))
        case MapType():
            return pa.map_(nested_arrow_type(type_.key_type, leaf), nested_arrow_type(type_.value_type, leaf))
        case StructType():
            return pa.struct([(member.name, nested_arrow_type(member.field_type, leaf)) for member in type_.fields])
    return leaf(type_text(type_))


def offsets_of(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """Returns where each list begins, and where the last one ends."""
    return np.cumsum(np.append(0, lengths), dtype=np.int32)


def list_array(offsets: np.ndarray, is_null: pa.BooleanArray, elements: pa.Array) -> pa.ListArray:
    """Returns lists of these elements. offsets: as offsets_of() returns them."""
    return pa.ListArray.from_arrays(_starts(offsets, is_null), elements, type=pa.list_(elements.type))


def map_array(offsets: np.ndarray, is_null: pa.BooleanArray, keys: pa.Array, values: pa.Array) -> pa.MapArray:
    """Returns maps of these keys and values."""
    return pa.MapArray.from_arrays(_starts(offsets, is_null), keys, values, type=pa.map_(keys.type, values.type))


def _starts(offsets: np.ndarray, is_null: pa.BooleanArray) -> pa.Int32Array:
    """Returns the offsets, null for null lists."""
    # The last offset is the end of the last list, and never null.
    return pa.array(offsets, mask=np.append(is_null.to_numpy(zero_copy_only=False), False))


def struct_array(columns: Sequence[pa.Array], names: Sequence[str], is_null: pa.BooleanArray) -> pa.StructArray:
    """Returns structs of these members."""
    fields = [pa.field(name, column.type) for name, column in zip(names, columns, strict=True)]
    return pa.StructArray.from_arrays([*columns], fields=fields, mask=is_null)


def in_lists(wrong: Iterable[WrongValue], offsets: np.ndarray) -> Iterator[WrongValue]:
    """Yields wrong elements as wrong values of their lists. wrong: rows are places among the elements of all lists."""
    for value in wrong:
        # The last list that begins at or before the element: empty lists before it begin there, too.
        row = bisect_right(offsets, value.row) - 1
        yield WrongValue(row, f"[{value.row - offsets[row]}]{value.place}", value.told)


def in_maps(wrong: Iterable[WrongValue], offsets: np.ndarray, keys: pa.Array) -> Iterator[WrongValue]:
    """Yields wrong values as wrong values of their maps. keys: of all maps."""
    for value in wrong:
        key = keys[value.row].as_py()
        yield WrongValue(bisect_right(offsets, value.row) - 1, f"[{key!r}]{value.place}", value.told)


def in_structs(wrong: Iterable[WrongValue], name: str) -> Iterator[WrongValue]:
    """Yields wrong members as wrong values of their structs."""
    return (WrongValue(value.row, f".{name}{value.place}", value.told) for value in wrong)
