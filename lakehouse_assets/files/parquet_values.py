"""Converts values of Parquet files to the declared types, nested ones included."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice
from typing import NoReturn
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t
from pyiceberg.types import IcebergType, ListType, MapType, StructType

from lakehouse_assets.files.cell_types import arrow_type
from lakehouse_assets.files.delivered import MOST_SHOWN, shortened
from lakehouse_assets.files.nested_types import (
    WrongValue,
    in_lists,
    in_maps,
    in_structs,
    list_array,
    map_array,
    nested_arrow_type,
    offsets_of,
    struct_array,
)
from lakehouse_assets.type_text import type_text

FIXED = re.compile(r"fixed\[(\d+)\]")
AS_STORED: dict[str, pa.DataType] = {"binary": pa.binary(), "uuid": pa.string()}
"""Declared type → Arrow's, for types that cells of text files can't have. A UUID is text in Spark, and Iceberg's writer
accepts that."""
INT96 = pa.timestamp("s")
"""Stands for Parquet's old timestamps: no other type of a file has seconds as its unit."""
SMALL_INTS = (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16())
LONG_INTS = (*SMALL_INTS, pa.int64(), pa.uint32(), pa.uint64())
UUID_BYTES = 16


def parquet_arrow_type(type_: IcebergType) -> pa.DataType:
    """Returns a column's Arrow type. Raises ValueError for a type that Spark lacks, with advice."""
    return nested_arrow_type(type_, _leaf_type)


def _leaf_type(text: str) -> pa.DataType:
    if text in AS_STORED:
        return AS_STORED[text]
    if text == "time":
        raise ValueError(
            "time is none of Spark's types; leave such a column out by ignore=[…], or have it delivered as text"
        )
    return pa.binary() if FIXED.fullmatch(text) else arrow_type(text)


def stored(type_: pa.DataType) -> pa.DataType:
    """Returns the type of the values themselves: without dictionaries, and without extensions other than UUIDs."""
    if t.is_dictionary(type_):
        return stored(type_.value_type)
    if isinstance(type_, pa.BaseExtensionType) and type_.extension_name != "arrow.uuid":
        return stored(type_.storage_type)
    return type_


def type_problem(type_: IcebergType, found: pa.DataType) -> str | None:
    """Returns why a file's column can't be read as a type, or None.

    found: the column's type in the file, as parquet_rows.schema_in() returns it: INT96 stands for old timestamps.
    """
    found = stored(found)
    if t.is_null(found):  # a column of nulls alone, which any type takes
        return None
    match type_:
        case ListType() if is_list(found):
            return _at("[]", type_problem(type_.element_type, found.value_type))
        case MapType() if t.is_map(found):
            return _at(" (keys)", type_problem(type_.key_type, found.key_type)) or _at(
                "[…]", type_problem(type_.value_type, found.item_type)
            )
        case StructType() if t.is_struct(found):
            return _struct_problem(type_, found)
        case ListType() | MapType() | StructType():
            return f" is {found}, expected {type_text(type_)}"
    text = type_text(type_)
    return None if _fits(text, found) else f" is {found_text(found)}, expected {text}"


def _at(place: str, problem: str | None) -> str | None:
    """Puts the place before a problem; returns None if there is none."""
    return problem and f"{place}{problem}"


def _struct_problem(type_: StructType, found: pa.StructType) -> str | None:
    names, wanted = [member.name for member in found], {member.name: member.field_type for member in type_.fields}
    if sorted(names) != sorted(wanted):
        missing, unknown = ([*dict.fromkeys(one)] for one in (wanted.keys() - {*names}, {*names} - wanted.keys()))
        told = [
            f"{word}: {', '.join(sorted(one))}" for word, one in (("missing", missing), ("unknown", unknown)) if one
        ]
        return f" has other members ({'; '.join(told) or 'one of them twice'})"
    problems = (_at(f".{member.name}", type_problem(wanted[member.name], member.type)) for member in found)
    return next(filter(None, problems), None)


def is_list(type_: pa.DataType) -> bool:
    """Whether it is an Arrow list type."""
    kinds = (t.is_list, t.is_large_list, t.is_fixed_size_list, t.is_list_view, t.is_large_list_view)
    return any(is_kind(type_) for is_kind in kinds)


def is_text(type_: pa.DataType) -> bool:
    """Whether it is an Arrow string type."""
    return any(is_kind(type_) for is_kind in (t.is_string, t.is_large_string, t.is_string_view))


def is_bytes(type_: pa.DataType) -> bool:
    """Whether it is an Arrow binary type."""
    return any(is_kind(type_) for is_kind in (t.is_binary, t.is_large_binary, t.is_binary_view, t.is_fixed_size_binary))


def is_uuid(type_: pa.DataType) -> bool:
    """Whether a type that stored() has returned is that of UUIDs: stored() leaves no other extension."""
    return isinstance(type_, pa.BaseExtensionType)


FITS: dict[str, Callable[[pa.DataType], bool]] = {
    "boolean": t.is_boolean,
    "int": lambda found: found in SMALL_INTS,
    "long": lambda found: found in LONG_INTS,
    "float": lambda found: found in (pa.float16(), pa.float32()),
    "double": t.is_floating,
    "date": t.is_date,
    "timestamp": lambda found: t.is_timestamp(found) and not found.tz,
    "timestamptz": lambda found: t.is_timestamp(found) and (bool(found.tz) or found == INT96),
    "string": lambda found: is_text(found) or (is_bytes(found) and not t.is_fixed_size_binary(found)),
    "binary": is_bytes,
    "uuid": lambda found: is_uuid(found) or found == pa.binary(UUID_BYTES),
}
"""Declared type → whether it can be read from a file's type. The order matters: told_type() suggests the first that can
be, after the types that it handles itself."""


def _fits(text: str, found: pa.DataType) -> bool:
    if text in FITS:
        return FITS[text](found)
    if size := FIXED.fullmatch(text):
        return bool(found == pa.binary(int(size[1])))
    # An integer of 64 bits without a sign has up to 20 digits.
    if found == pa.uint64():
        found = pa.decimal128(20, 0)
    wanted = arrow_type(text)
    if not t.is_decimal(found):
        return False
    # Neither digits after the point nor those before it may be lost.
    whole = [type_.precision - type_.scale for type_ in (found, wanted)]
    return bool(found.scale <= wanted.scale and whole[0] <= whole[1])


def found_text(found: pa.DataType) -> str:
    """Returns a file's type as messages name it."""
    if found == INT96:
        return "timestamp (INT96)"
    return "uuid" if is_uuid(found) else str(found)


def converted(array: pa.Array, type_: IcebergType) -> tuple[pa.Array, list[WrongValue]]:
    """Returns a column's values, with null for wrong values, and the first MOST_SHOWN wrong values of each leaf.

    The types must pass type_problem().
    """
    array = _plain(array)
    if t.is_null(array.type):
        return pa.nulls(len(array), parquet_arrow_type(type_)), []
    match type_:
        case ListType():
            offsets = offsets_of(pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False))
            elements, wrong = converted(array.flatten(), type_.element_type)
            return list_array(offsets, array.is_null(), elements), [*in_lists(wrong, offsets)]
        case MapType():
            return _map(array, type_)
        case StructType():
            members = dict(zip((member.name for member in array.type), array.flatten(), strict=True))
            done = {member.name: converted(members[member.name], member.field_type) for member in type_.fields}
            wrong = [value for name, (_, own) in done.items() for value in in_structs(own, name)]
            return struct_array([column for column, _ in done.values()], [*done], array.is_null()), wrong
    return _leaf(array, type_text(type_))


def _map(array: pa.MapArray, type_: MapType) -> tuple[pa.Array, list[WrongValue]]:
    entries = array.cast(pa.list_(pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])))
    offsets = offsets_of(pc.fill_null(pc.list_value_length(entries), 0).to_numpy(zero_copy_only=False))
    given, values = entries.flatten().flatten()
    keys, wrong_keys = converted(given, type_.key_type)
    values, wrong = converted(values, type_.value_type)
    wrong_keys += [WrongValue(n, "", "is null, and a key") for n in pc.indices_nonzero(given.is_null()).to_pylist()]
    # Arrow can't build a map with null keys. The values don't matter then: any wrong key fails the file.
    if wrong_keys:
        return pa.nulls(len(array), parquet_arrow_type(type_)), [*in_lists(wrong_keys, offsets)]
    return map_array(offsets, array.is_null(), keys, values), [*in_maps(wrong, offsets, keys)]


def _plain(array: pa.Array) -> pa.Array:
    """Returns the values themselves, in the type that stored() returns."""
    if t.is_dictionary(array.type):
        return _plain(array.dictionary_decode())
    if isinstance(array, pa.ExtensionArray) and not is_uuid(stored(array.type)):
        return _plain(array.storage)
    return array


def _leaf(array: pa.Array, text: str) -> tuple[pa.Array, list[WrongValue]]:
    target = _leaf_type(text)
    if text == "uuid":
        held = array.storage if is_uuid(array.type) else array
        return pa.array([value and str(UUID(bytes=value)) for value in held.to_pylist()], target), []
    try:
        done = array.cast(target)
        done.validate(full=True)  # Parquet's reader does not check that texts are UTF-8
        return done, []
    except pa.ArrowInvalid:  # it does not say where the wrong value is, nor whether there are more
        cells = [array[n : n + 1] for n in range(len(array))]
    values = [_one(cell, target) for cell in cells]
    wrong = [n for n, (value, cell) in enumerate(zip(values, cells, strict=True)) if value is None and cell[0].is_valid]
    told = (WrongValue(n, "", f"{_shown(cells[n])} is no {text}{_advice(array.type, text)}") for n in wrong)
    parts = [pa.nulls(1, target) if value is None else value for value in values]
    return pa.concat_arrays(parts), [*islice(told, MOST_SHOWN)]


def _one(cell: pa.Array, target: pa.DataType) -> pa.Array | None:
    """Returns a cell's converted value; None if it is wrong or null."""
    try:
        done = cell.cast(target)
        done.validate(full=True)
    except pa.ArrowInvalid:
        return None
    return done if cell[0].is_valid else None


def _shown(cell: pa.Array) -> str:
    # By way of bytes: a text may not be UTF-8.
    if is_text(cell.type) or is_bytes(cell.type):
        return shortened(cell.cast(pa.large_binary())[0].as_py().decode(errors="backslashreplace"))
    return shortened(cell.cast(pa.string())[0].as_py())


def _advice(found: pa.DataType, text: str) -> str:
    if found == pa.uint64():
        return "; declare it decimal(20, 0)"
    if t.is_timestamp(found):
        if found.unit == "ns":
            return ", as it has nanoseconds; have it delivered in microseconds"
        return ", as it is out of range"
    return "; declare it binary" if text == "string" and is_bytes(found) else ""


def told_type(found: pa.DataType) -> str:
    """Returns the declared type that takes a file's column. Raises ValueError if there is none."""
    found = stored(found)
    if t.is_null(found):
        return "string"
    if is_list(found):
        return f"list<{told_type(found.value_type)}>"
    if t.is_map(found):
        return f"map<{told_type(found.key_type)}, {told_type(found.item_type)}>"
    if t.is_struct(found):
        return f"struct<{', '.join(f'{member.name}: {told_type(member.type)}' for member in found)}>"
    if found == pa.uint64():
        return "decimal(20, 0)"
    if t.is_decimal(found) and found.precision <= 38:
        return (
            f"decimal({found.precision}, {found.scale})" if 0 <= found.scale <= found.precision else _refuse_type(found)
        )
    if t.is_fixed_size_binary(found):
        return f"fixed[{found.byte_width}]"
    if found == INT96:  # as Spark writes its timestamps
        return "timestamptz"
    if is_bytes(found):
        return "binary"
    return next((text for text, fits in FITS.items() if fits(found)), "") or _refuse_type(found)


def _refuse_type(found: pa.DataType) -> NoReturn:
    what = "a time of day, which Spark does not have" if t.is_time(found) else f"{found}, which Iceberg does not have"
    raise ValueError(f"is {what}")
