"""JSON values: strict parsing, and conversion to the declared types."""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, BinaryIO, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import IcebergType, ListType, MapType, StringType, StructType

from lakehouse_assets.files.advice import time_advice, type_advice
from lakehouse_assets.files.cell_types import Spelling, arrow_type, read_cells
from lakehouse_assets.files.delivered import MOST_SHOWN, shortened, without_mark
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

BUFFER = 2**20
LONGEST_LINE = 2**24
"""In characters; a line is held in memory."""
LONGEST_ARRAY = 2**26
"""In characters; an array is read whole."""
NOT_DECODED = re.compile("[\udc80-\udcff]")
"""What ``surrogateescape`` makes of bytes that can't be decoded (PEP 383)."""
SPACE, BETWEEN, END = (
    re.compile(pattern) for pattern in (r"[ \t\r\n]*", r"[ \t\r\n]*,[ \t\r\n]*", r"[ \t\r\n]*\]\s*$")
)
"""What may stand before an array's first element, between two elements, and after the last one."""


class Number(str):
    """A number as it is written: a float would lose digits. A class of its own tells it from a string."""

    __slots__ = ()


class Line(NamedTuple):
    """A line of a file, or an element of its array."""

    number: int
    """From 1."""
    size: int
    """In characters."""
    found: dict[str, Any] | str
    """The object, or what is wrong instead."""


class _RepeatedField(ValueError):
    """An object has two fields of one name."""


def _members(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object's fields. Raises _RepeatedField."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _RepeatedField(next(name for name in names if names.count(name) > 1))
    return found


DECODER = json.JSONDecoder(object_pairs_hook=_members, parse_int=Number, parse_float=Number, parse_constant=Number)


def objects_of(source: BinaryIO, encoding: str) -> Iterator[Line]:
    """Yields the objects of a file: one a line, or those of one array. Ends after a line that it can't read whole.

    encoding: a Python codec.
    """
    # utf-8-sig drops a byte order mark.
    codec = "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding
    lines = io.TextIOWrapper(
        io.BufferedReader(cast(io.RawIOBase, source), BUFFER), codec, "surrogateescape", newline="\n"
    )
    number, first = 0, True
    while True:
        number += 1
        try:
            text = lines.readline(LONGEST_LINE)
            # Only the first line that is not blank can begin an array.
            if first and text.lstrip(" \t\r\n").startswith("["):
                text += lines.read(LONGEST_ARRAY)
                yield from _of_array(text, number, encoding)
                return
        # Raised by codecs such as UTF-16's: surrogateescape escapes only bytes from 0x80 on. The reader decodes a block
        # of many lines at once, so the line is not known.
        except UnicodeDecodeError:
            yield Line(number, 0, f"holds bytes that are not {encoding}, on this line or behind it")
            return
        except UnicodeError:  # UTF-16 and UTF-32 raise it if the file begins without a byte order mark
            yield Line(number, 0, without_mark(encoding))
            return
        if not text:
            return
        if len(text) == LONGEST_LINE and not text.endswith("\n"):
            yield Line(number, len(text), f"is longer than {LONGEST_LINE:,} characters")
            return
        if text.isspace():
            continue
        first = False
        yield Line(number, len(text), _not_decoded(text, encoding) or _object(text))


def _of_array(text: str, line: int, encoding: str) -> Iterator[Line]:
    """Yields an array's elements. line: the number of the text's first line."""
    if len(text) >= LONGEST_ARRAY:
        yield Line(
            line, 0, f"begins an array of over {LONGEST_ARRAY:,} characters; have it delivered as an object a line"
        )
        return
    if problem := _not_decoded(text, encoding):
        place = NOT_DECODED.search(text).start()  # type: ignore[union-attr]
        yield Line(line + text.count("\n", 0, place), 0, problem)
        return
    place = SPACE.match(text, text.index("[") + 1).end()  # type: ignore[union-attr]
    # ``place`` is where to read on, ``before`` where the last element began (first: the text), and ``line`` the number
    # of the line that has ``before``.
    before, is_end = 0, END.match(text, place)
    while not is_end:
        line, before = line + text.count("\n", before, place), place
        try:
            found, place = DECODER.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            yield Line(line, 0, _told(error, in_array=True))
            return
        yield Line(line, place - before, found if isinstance(found, dict) else _no_object(found))
        is_end, comma = END.match(text, place), BETWEEN.match(text, place)
        if not is_end and not comma:
            told = "is behind an element of an array, and is neither a comma nor its end"
            yield Line(line + text.count("\n", before, place), 0, f"{told}: {text[place : place + 20]!r}")
            return
        place = comma.end() if comma else place


def _object(text: str) -> dict[str, Any] | str:
    try:
        found = DECODER.decode(text.rstrip("\r\n"))
    except (ValueError, RecursionError) as error:
        return _told(error)
    return found if isinstance(found, dict) else _no_object(found)


def _told(error: Exception, *, in_array: bool = False) -> str:
    match error:
        case _RepeatedField():
            return f"has the field {str(error)!r} more than once in one object"
        case json.JSONDecodeError():
            whole = (
                "is no JSON object" if in_array else "is no JSON object, or not all of one: each has a line of its own"
            )
            return f"{whole} ({error.msg}, at character {error.colno})"
    return "is an object that is nested too deeply"


def _no_object(found: Any) -> str:
    return f"is no JSON object, but {kind_of(found)}"


def _not_decoded(text: str, encoding: str) -> str:
    """Returns what is wrong if bytes of a text could not be decoded, or ""."""
    if text.isascii() or not NOT_DECODED.search(text):
        return ""
    told = f"holds bytes that are not {encoding.upper()}"
    return told if codecs.lookup(encoding).name != "utf-8" else f"{told}; encoding='cp1252' takes those of Windows"


def kind_of(value: Any) -> str:
    """Returns JSON's name for a value's kind."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        # Before str, as a Number is one.
        case Number():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
    return "an object"


TAKEN = {"string": (str,), "boolean": (bool,), "date": (str,), "timestamp": (str,), "timestamptz": (str,)}
"""Type → the Python classes of its values. The other types that arrow_type() allows are numbers and take a Number; a
decimal takes a string, too."""
TIMES = ("date", "timestamp", "timestamptz")


def json_arrow_type(type_: IcebergType) -> pa.DataType:
    """Returns a column's Arrow type. Raises ValueError if JSON can't have it, with advice."""
    _refuse_keys(type_)
    return nested_arrow_type(type_, arrow_type)


def _refuse_keys(type_: IcebergType) -> None:
    """Raises ValueError for a map whose keys are not strings."""
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
    """Converts values to columns. A path consists of a column's and members' names, such as ``place.lat``."""

    spelling: Spelling
    ignore: frozenset[str]
    """Paths of fields to leave out."""

    def members(
        self, objects: Sequence[Mapping[str, Any] | None], types: Mapping[str, tuple[str, IcebergType]], path: str = ""
    ) -> tuple[list[pa.Array], list[WrongValue]]:
        """Returns a column for each field, and what is wrong.

        types: field → its column and type. path: of the objects, with a dot at its end; empty for the file's own.
        """
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
        # A map can't have a null key. What stands there does not matter: ``no_text`` fails the file.
        if no_text:
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
        find = time_advice if type_ in TIMES else type_advice
        instead = "" if isinstance(text, Number) else "; declare it string to take it as it is"
        return next((f"; {told}" for told in find(pa.array([text], pa.string()), path, type_, self.spelling)), instead)


def _only(values: Sequence[Any], taken: tuple[type, ...], type_: object) -> tuple[Sequence[Any], list[WrongValue]]:
    """Returns the values, with null for those of other classes than ``taken``, and the latter as wrong."""
    classes = {*map(type, values)}
    if classes <= {*taken, type(None)}:
        return values, []
    text = type_ if isinstance(type_, str) else type_text(type_)  # type: ignore[arg-type]
    others = [row for row, one in enumerate(values) if one is not None and type(one) not in taken]
    wrong = [
        WrongValue(row, "", f"{message_text(values[row])} is {kind_of(values[row])}, expected {text}")
        for row in others[:MOST_SHOWN]
    ]
    return [one if type(one) in taken else None for one in values], wrong


def _is_null(values: Sequence[Any]) -> pa.BooleanArray:
    return pa.array([one is None for one in values], pa.bool_())


def _strings(values: Sequence[str | None]) -> tuple[pa.StringArray, list[WrongValue]]:
    """Returns texts; half of a surrogate pair, which JSON can spell and UTF-8 can't, is wrong."""
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


def message_text(value: Any) -> str:
    """Returns a value as a message shows it: strings in quotes, lists and objects without content."""
    match value:
        # Before str, as a Number is one; without the quotes of shortened().
        case Number():
            return shortened(value)[1:-1]
        case str():
            return shortened(value)
        case bool():
            return json.dumps(value)
        case list():
            return "[…]"
    return "{…}"
