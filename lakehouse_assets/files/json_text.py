"""A JSON file's bytes as objects: one a line, or one array of them. Numbers stay the texts that they are.

What the values mean is json_values.py's; where the bytes come from, delivered.py's.
"""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple, cast

BUFFER = 2**20
LONGEST_LINE = 2**24
"""In characters. A line is held in memory."""
LONGEST_ARRAY = 2**26
"""In characters. An array is read whole."""
NOT_DECODED = re.compile("[\udc80-\udcff]")
"""What stands for bytes that are no text (PEP 383)."""
SPACE, BETWEEN, END = (
    re.compile(pattern) for pattern in (r"[ \t\r\n]*", r"[ \t\r\n]*,[ \t\r\n]*", r"[ \t\r\n]*\]\s*$")
)


class Number(str):
    """A number as it is written in JSON, so that none of its digits is lost."""

    __slots__ = ()


class Line(NamedTuple):
    """What a line of a file holds."""

    number: int
    """From 1."""
    size: int
    """In characters."""
    found: dict[str, Any] | str
    """The object, or what is wrong instead."""


class _RepeatedField(ValueError):
    """An object has two fields of one name."""


def _members(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _RepeatedField(next(name for name in names if names.count(name) > 1))
    return found


DECODER = json.JSONDecoder(object_pairs_hook=_members, parse_int=Number, parse_float=Number, parse_constant=Number)


def objects_of(source: BinaryIO, encoding: str) -> Iterator[Line]:
    """Yields the objects of a file, each with the line on which it begins. Blank lines are left out.

    encoding: a codec of Python's. Behind a line that is not read to its end, nothing is yielded.
    """
    codec = "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding
    lines = io.TextIOWrapper(
        io.BufferedReader(cast(io.RawIOBase, source), BUFFER), codec, "surrogateescape", newline="\n"
    )
    number, first = 0, True
    while True:
        number += 1
        try:
            text = lines.readline(LONGEST_LINE)
            if first and text.lstrip(" \t\r\n").startswith("["):
                text += lines.read(LONGEST_ARRAY)
                yield from _of_array(text, number, encoding)
                return
        except UnicodeDecodeError:  # of codecs whose characters have several bytes, and of a whole block of them
            yield Line(number, 0, f"holds bytes that are not {encoding}, on this line or behind it")
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
    """Says that a text holds bytes that are none; empty if it does not."""
    if text.isascii() or not NOT_DECODED.search(text):
        return ""
    told = f"holds bytes that are not {encoding.upper()}"
    return told if encoding.lower() != "utf-8" else f"{told}; encoding='cp1252' takes those of Windows"


def kind_of(value: Any) -> str:
    """Returns what JSON calls a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case Number():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
    return "an object"
