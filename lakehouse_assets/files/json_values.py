"""The values of JSON's fields as columns: each of its declared type, nested ones included, or told as wrong.

Lines and files are json_rows.py's; what a text may be is cell_types.py's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import IcebergType, ListType, MapType, StringType, StructType

from lakehouse_assets.files.advice import time_advice, type_advice
from lakehouse_assets.files.cell_types import Spelling, arrow_type, read_cells
from lakehouse_assets.files.json_text import Number, kind_of
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
from lakehouse_assets.files.reading import MOST_SHOWN, shortened
from lakehouse_assets.type_text import type_text

TAKEN = {"string": (str,), "boolean": (bool,), "date": (str,), "timestamp": (str,), "timestamptz": (str,)}
"""The classes of the values that a type takes; a number's is Number, of a decimal also a string."""
TIMES = ("date", "timestamp", "timestamptz")


def json_arrow_type(type_: IcebergType) -> pa.DataType:
    """Returns Arrow's type of a column. Raises ValueError for a type that is not read from JSON, with advice."""
    _refuse_keys(type_)
    return nested_arrow_type(type_, arrow_type)


def _refuse_keys(type_: IcebergType) -> None:
    match type_:
        case MapType():
            if not isinstance(type_.key_type, StringType):
                raise ValueError(f"{type_text(type_)}: the names of JSON's fields are strings; expected map<string, …>")
            _refuse_keys(type_.value_type)
        case ListType():
            _refuse_keys(type_.element_type)
        case StructType():
            for member in type_.fields:
                _refuse_keys(member.field_type)


@dataclass(frozen=True)
class JsonColumns:
    """Makes columns of values. Paths have the names of columns and members, such as ``place.lat``."""

    spelling: Spelling
    ignore: frozenset[str]
    """The paths of fields that are left out."""

    def members(
        self, objects: Sequence[Mapping[str, Any] | None], types: Mapping[str, tuple[str, IcebergType]], path: str = ""
    ) -> tuple[list[pa.Array], list[WrongValue]]:
        """Returns a column for each field, and what is wrong. types: a field's name → its column's, and its type."""
        known = {*types, *(name.removeprefix(path) for name in self.ignore if name.startswith(path))}
        wrong = [*islice(self._unknown(objects, known), MOST_SHOWN)]
        columns = []
        for name, (column, type_) in types.items():
            values = [None if one is None else one.get(name) for one in objects]
            array, own = self._column(values, type_, f"{path}{column}")
            columns.append(array)
            wrong += in_structs(own, name)
        return columns, wrong

    @staticmethod
    def _unknown(objects: Sequence[Mapping[str, Any] | None], known: set[str]) -> Iterator[WrongValue]:
        for row, one in enumerate(objects):
            if one and not one.keys() <= known:
                for name in one.keys() - known:
                    yield WrongValue(row, f".{name}", "is unknown; declare it, or name it in ignore=[…]")

    def _column(self, values: Sequence[Any], type_: IcebergType, path: str) -> tuple[pa.Array, list[WrongValue]]:
        match type_:
            case ListType():
                return self._lists(values, type_, path)
            case MapType():
                return self._maps(values, type_, path)
            case StructType():
                return self._structs(values, type_, path)
        return self._leaves(values, type_text(type_), path)

    def _lists(self, values: Sequence[Any], type_: ListType, path: str) -> tuple[pa.Array, list[WrongValue]]:
        values, wrong = _only(values, (list,), type_)
        offsets = offsets_of([len(one or ()) for one in values])
        elements, own = self._column([*chain.from_iterable(one or () for one in values)], type_.element_type, path)
        return list_array(offsets, _is_null(values), elements), [*wrong, *in_lists(own, offsets)]

    def _maps(self, values: Sequence[Any], type_: MapType, path: str) -> tuple[pa.Array, list[WrongValue]]:
        values, wrong = _only(values, (dict,), type_)
        offsets = offsets_of([len(one or ()) for one in values])
        keys, no_text = _strings([*chain.from_iterable(one or () for one in values)])
        found, own = self._column(
            [*chain.from_iterable((one or {}).values() for one in values)], type_.value_type, path
        )
        if no_text:  # a map has no null as a key
            keys = pc.fill_null(keys, "")
        array = map_array(offsets, _is_null(values), keys, found)
        return array, [*wrong, *in_lists(no_text, offsets), *in_maps(own, offsets, keys)]

    def _structs(self, values: Sequence[Any], type_: StructType, path: str) -> tuple[pa.Array, list[WrongValue]]:
        values, wrong = _only(values, (dict,), type_)
        types = {member.name: (member.name, member.field_type) for member in type_.fields}
        columns, own = self.members(values, types, f"{path}.")
        return struct_array(columns, [*types], _is_null(values)), [*wrong, *own]

    def _leaves(self, values: Sequence[Any], type_: str, path: str) -> tuple[pa.Array, list[WrongValue]]:
        taken = (Number, str) if type_.startswith("decimal") else TAKEN.get(type_, (Number,))
        values, wrong = _only(values, taken, type_)
        if type_ == "boolean":
            return pa.array(values, pa.bool_()), wrong
        texts, no_text = _strings(values)
        array, is_wrong = read_cells(texts, path, arrow_type(type_), self.spelling)
        for row in islice(pc.indices_nonzero(is_wrong).to_pylist(), MOST_SHOWN):
            told = f"{shortened(values[row])} is no {type_}{self._advice(values[row], path, type_)}"
            wrong.append(WrongValue(row, "", told))
        return array, [*wrong, *no_text]

    def _advice(self, text: str, path: str, type_: str) -> str:
        """Returns the end of a sentence that says which option or type takes a text; empty if none is known."""
        find = time_advice if type_ in TIMES else type_advice
        instead = "" if isinstance(text, Number) else "; declare it string to take it as it is"
        return next((f"; {told}" for told in find(pa.array([text], pa.string()), path, type_, self.spelling)), instead)


def _only(values: Sequence[Any], taken: tuple[type, ...], type_: object) -> tuple[Sequence[Any], list[WrongValue]]:
    """Returns the values with null in place of those of other classes, and these as wrong."""
    classes = {*map(type, values)}
    if classes <= {*taken, type(None)}:
        return values, []
    text = type_ if isinstance(type_, str) else type_text(type_)  # type: ignore[arg-type]
    others = [row for row, one in enumerate(values) if one is not None and type(one) not in taken]
    wrong = [
        WrongValue(row, "", f"{shown(values[row])} is {kind_of(values[row])}, expected {text}")
        for row in others[:MOST_SHOWN]
    ]
    return [one if type(one) in taken else None for one in values], wrong


def _is_null(values: Sequence[Any]) -> pa.BooleanArray:
    return pa.array([one is None for one in values], pa.bool_())


def _strings(values: Sequence[str | None]) -> tuple[pa.StringArray, list[WrongValue]]:
    """Returns the texts; half a surrogate pair, which JSON can spell, is none."""
    try:
        return pa.array(values, pa.string()), []
    except UnicodeEncodeError:
        halves = [one is not None and any("\ud800" <= letter <= "\udfff" for letter in one) for one in values]
    wrong = [
        WrongValue(row, "", f"{json.dumps(values[row])[:80]} is no text: it has half of a surrogate pair")
        for row, half in enumerate(halves)
        if half
    ]
    return pa.array([None if half else one for one, half in zip(values, halves, strict=True)], pa.string()), wrong


def shown(value: Any) -> str:
    """Returns a value as a message shows it: strings in quotes, other values as JSON has them."""
    match value:
        case Number():
            return shortened(value)[1:-1]
        case str():
            return shortened(value)
        case bool():
            return json.dumps(value)
        case list():
            return "[…]"
    return "{…}"
