"""The grammar of each type in text, times included.

Time patterns have Spark's letters (https://spark.apache.org/docs/latest/sql-ref-datetime-pattern.html).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache, cached_property, partial
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
import pyarrow.compute as pc

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
FULL_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
PARTS = {
    "yyyy": "(?P<year>[0-9]{4})",
    "yy": "(?P<year>[0-9]{2})",
    "MMMM": f"(?P<name>{'|'.join(FULL_MONTHS)})",
    "MMM": f"(?P<name>{'|'.join(MONTHS)})",
    "MM": "(?P<month>[0-9]{2})",
    "M": "(?P<month>[0-9]{1,2})",
    "dd": "(?P<day>[0-9]{2})",
    "d": "(?P<day>[0-9]{1,2})",
    "HH": "(?P<hour>[0-9]{2})",
    "H": "(?P<hour>[0-9]{1,2})",
    "hh": "(?P<half>0[1-9]|1[0-2])",
    "h": "(?P<half>0?[1-9]|1[0-2])",
    "mm": "(?P<minute>[0-9]{2})",
    "ss": "(?P<second>[0-9]{2})",
    "a": "(?P<noon>AM|PM|am|pm)",
    "XXX": r"(?P<zone>Z|[+-][0-9]{2}:[0-9]{2})",
    "XX": r"(?P<zone>Z|[+-][0-9]{4})",
    "X": r"(?P<zone>Z|[+-][0-9]{2}(?:[0-9]{2})?)",
}
"""A pattern's letters → the texts that they stand for. TimePattern handles ``S``, a digit of a fraction. The group
``half`` is an hour from 1 to 12, ``name`` a month's name. A year of ``yy`` is 2000 to 2099, as in Spark."""
TOKEN = re.compile(r"(?P<letters>([A-Za-z])\2*)|'(?P<quoted>[^']*)'|(?P<other>.)", re.DOTALL)
"""A part of a pattern: one letter or the same letter repeated, a text in quotes, or any other character."""
DATE_PARTS = frozenset({"year", "day"})
"""The groups that each pattern needs, besides ``month`` or ``name``."""


@dataclass(frozen=True)
class TimePattern:
    """A pattern of dates or times, such as ``dd.MM.yyyy``. Raises ValueError for unknown letters or a missing part."""

    text: str

    def __post_init__(self) -> None:
        names = {*re.compile(self._regex).groupindex}
        if not names >= DATE_PARTS or not names & {"month", "name"}:
            raise ValueError(f"the pattern {self.text!r} lacks a year, a month or a day (yyyy, MM, dd)")
        if ("half" in names) != ("noon" in names):
            raise ValueError(f"the pattern {self.text!r} has one of h and a, which go together; 24 hours are H")

    @cached_property
    def _regex(self) -> str:
        parts = []
        for token in TOKEN.finditer(self.text):
            letters = token["letters"]
            if not letters:
                # Two quotes with nothing between them stand for one quote.
                parts.append(re.escape(token["quoted"] or token["other"] or "'"))
            # At most nine digits: nanoseconds.
            elif set(letters) == {"S"} and len(letters) <= 9:
                parts.append(f"(?P<fraction>[0-9]{{{len(letters)}}})")
            elif letters in PARTS:
                parts.append(PARTS[letters])
            else:
                raise ValueError(f"the pattern {self.text!r} has {letters!r}; known are {', '.join(PARTS)} and S")
        try:
            re.compile(whole := f"^{''.join(parts)}$")
        except re.error:
            raise ValueError(f"the pattern {self.text!r} has a part twice") from None
        return whole

    def matches(self, text: str) -> bool:
        """Whether a text has this form, even if there is no such day."""
        return re.fullmatch(self._regex, text) is not None

    def to_iso(self, texts: pa.StringArray) -> pa.StringArray:
        """Returns the texts in ISO 8601; null for another form."""
        found = pc.extract_regex(texts, self._regex)
        names = {found.type.field(i).name for i in range(found.type.num_fields)}

        def part(name: str, default: str, digits: int = 2) -> pa.Array | str:
            return pc.utf8_lpad(pc.struct_field(found, name), digits, "0") if name in names else default

        year = part("year", "")
        if any(token["letters"] == "yy" for token in TOKEN.finditer(self.text)):
            year = pc.binary_join_element_wise("20", year, "")
        month = self._month(pc.struct_field(found, "name")) if "name" in names else part("month", "")
        date = pc.binary_join_element_wise(year, month, part("day", ""), "-")
        if not names & {"hour", "half"}:
            return date
        hour = self._hour(found) if "half" in names else part("hour", "00")
        clock = pc.binary_join_element_wise(hour, part("minute", "00"), part("second", "00"), ":")
        if "fraction" in names:
            clock = pc.binary_join_element_wise(clock, pc.struct_field(found, "fraction"), ".")
        zone = pc.struct_field(found, "zone") if "zone" in names else ""
        return pc.binary_join_element_wise(pc.binary_join_element_wise(date, clock, "T"), zone, "")

    @staticmethod
    def _month(names: pa.StringArray) -> pa.StringArray:
        # The short names are the first three letters of the full ones.
        short = pc.utf8_slice_codeunits(names, 0, 3)
        numbers = pa.array([f"{n:02}" for n in range(1, 13)])
        return numbers.take(pc.index_in(short, pa.array(MONTHS)))

    @staticmethod
    def _hour(found: pa.StructArray) -> pa.StringArray:
        half = pc.struct_field(found, "half").cast(pa.int32())
        past_noon = pc.equal(pc.utf8_upper(pc.struct_field(found, "noon")), "PM")
        # 12 AM is midnight, 12 PM is noon.
        morning = pc.if_else(pc.equal(half, 12), 0, half)
        hours = pc.if_else(past_noon, pc.add(morning, 12), morning)
        return pc.utf8_lpad(hours.cast(pa.string()), 2, "0")


@cache
def time_pattern(text: str) -> TimePattern:
    """Returns the cached pattern. Raises ValueError as TimePattern does."""
    return TimePattern(text)


DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")
ARROW: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "string": pa.string(),
}
"""Iceberg's type → Arrow's, for all types that a cell can have except decimals (see DECIMAL)."""
TRUE, FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")
NOT_FINITE = {
    **dict.fromkeys(("nan", "NaN"), math.nan),
    **dict.fromkeys(("inf", "Infinity"), math.inf),
    **dict.fromkeys(("-inf", "-Infinity"), -math.inf),
}
"""The texts of floating-point values that are no numbers."""
INTEGER = r"^[+-]?[0-9]+$"
WHOLE = r"^[+-]?[0-9]+(\.0*)?$"
"""As INTEGER, also with a point and zeros after it."""
REAL = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
YEAR = r"^([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
"""0001 to 9999."""
TIME = YEAR + r"-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6}0{0,3})?)?"
"""A date and time. Up to three zeros may follow six digits of a fraction."""
ZONE = r"(Z|[+-](0[0-9]|1[0-7])(:?[0-5][0-9])?|[+-]18(:?00)?)$"
"""``Z`` or an offset of up to 18 hours, as in java.time.ZoneOffset and so in Spark."""
FIRST, LAST = (pa.scalar(one.replace(tzinfo=UTC), pa.timestamp("us", "UTC")) for one in (datetime.min, datetime.max))
"""The range of Python's datetime, the years 1 to 9999; Spark has no year 0 either."""
EXACT_DIGITS = {pa.float32(): 7, pa.float64(): 15}
"""A whole number of at most so many digits is exact as a value of this type."""


@dataclass(frozen=True)
class Spelling:
    """How a file writes its values, besides what each type always allows."""

    decimal: str = "."
    """The mark before a fraction."""
    thousands: str = ""
    """The mark between groups of three digits; empty for none."""
    booleans: tuple[str, str] = ("", "")
    """Texts of true and false; empty for ``true`` and ``false`` in lower, upper or title case."""
    time_zone: str = ""
    """The zone of times without an offset, such as ``Europe/Berlin``; empty if each time must have an offset."""
    formats: Mapping[str, str] = field(default_factory=dict)
    """Column → pattern of its dates or times, such as ``dd.MM.yyyy HH:mm``."""

    def __post_init__(self) -> None:
        # Each letter of thousands counts as a mark; none if it is empty.
        marks = [self.decimal, *self.thousands]
        if any(len(mark) != 1 or mark.isalnum() or mark in "+-" for mark in marks) or len(self.thousands) > 1:
            raise ValueError(f"decimal and thousands are one mark each, no letter, digit or sign, found {marks}")
        if self.decimal == self.thousands:
            raise ValueError(
                f"decimal and thousands are both {self.decimal!r}: give both, as decimal=',', thousands='.'"
            )
        # One text in the set: the other is missing, or both are equal.
        if len(self.booleans) != 2 or len({*filter(None, self.booleans)}) == 1:
            raise ValueError(f"booleans={self.booleans!r}: expected two texts that differ, for true and for false")
        for pattern in self.formats.values():
            time_pattern(pattern)
        if self.time_zone:
            try:
                ZoneInfo(self.time_zone)
            except (ZoneInfoNotFoundError, ValueError):
                raise ValueError(f"time_zone={self.time_zone!r} is no name such as Europe/Berlin") from None


def arrow_type(text: str) -> pa.DataType:
    """Returns Arrow's type for an Iceberg type. Raises ValueError for one that no cell can have, with advice."""
    if found := DECIMAL.fullmatch(text):
        precision, scale = map(int, found.groups())
        if not 1 <= precision <= 38 or scale > precision:
            raise ValueError(f"{text} is no decimal: expected 1 to 38 digits, of which at most all are a fraction")
        return pa.decimal128(precision, scale)
    if text not in ARROW:
        raise ValueError(f"{text} is none of {', '.join(ARROW)}, decimal(precision, scale); declare it string")
    return ARROW[text]


def read_cells(texts: pa.StringArray, column: str, type_: pa.DataType, spelling: Spelling) -> tuple[pa.Array, pa.Array]:
    """Returns a column's values, and a mask of the texts that are no value of the type.

    Such texts become null values; a null text is not in the mask.
    """
    if pa.types.is_string(type_):
        # No text is wrong: this mask is False in every row.
        return texts, pc.and_(pc.is_null(texts), False)
    # Kept for the mask: to_iso() makes a text of another form null.
    given = texts
    if pattern := spelling.formats.get(column):
        texts = time_pattern(pattern).to_iso(texts)
    values = _reader(type_, spelling)(texts)
    return values, pc.and_(pc.is_valid(given), pc.is_null(values))


def _reader(type_: pa.DataType, spelling: Spelling) -> Callable[[pa.StringArray], pa.Array]:
    if pa.types.is_boolean(type_):
        return partial(_booleans, spelling=spelling)
    if pa.types.is_date(type_):
        return _dates
    if pa.types.is_timestamp(type_):
        return partial(_instants, zone=spelling.time_zone) if type_.tz else _times
    if pa.types.is_integer(type_):
        read = _integers
    elif pa.types.is_floating(type_):
        read = _reals
    else:
        read = _decimals
    return lambda texts: read(_plain_numbers(texts, spelling), type_)


def _only(texts: pa.StringArray, pattern: str) -> pa.StringArray:
    """Returns the texts that match, null for others."""
    return pc.if_else(pc.match_substring_regex(texts, pattern), texts, None)


def _plain_numbers(texts: pa.StringArray, spelling: Spelling) -> pa.StringArray:
    """Returns numbers with a decimal point and without groups; null for misplaced marks."""
    point, group = spelling.decimal, spelling.thousands
    if group:
        # Groups of three digits. The first has one to three and does not begin with 0. A fraction has no groups.
        fraction = f"([{re.escape(point)}][^{re.escape(group)}]*)?$"
        grouped = rf"^[+-]?[1-9][0-9]{{0,2}}({re.escape(group)}[0-9]{{3}})+{fraction}"
        plain = pc.replace_substring(_only(texts, grouped), group, "")
        texts = pc.if_else(pc.match_substring(texts, group), plain, texts)
    if point != ".":
        # If another mark precedes a fraction, a point is misplaced.
        texts = pc.if_else(pc.match_substring(texts, "."), None, texts)
        texts = pc.replace_substring(texts, point, ".")
    return texts


def _cast(texts: pa.StringArray, type_: pa.DataType) -> pa.Array:
    """Returns the values; null for texts that are none, such as 30 February."""
    try:
        return texts.cast(type_)
    except pa.ArrowInvalid:  # it names only the first such text, so each is cast by itself
        return pa.array([_one(text, type_) for text in texts], type_)


def _one(text: pa.StringScalar, type_: pa.DataType) -> Any:
    try:
        return text.cast(type_).as_py()
    except (pa.ArrowInvalid, OverflowError):  # Python's calendar has no year 0
        return None


def _integers(texts: pa.StringArray, type_: pa.DataType) -> pa.Array:
    # Casting is faster than matching. Arrow's cast differs from INTEGER in two ways: it refuses a plus sign, and it
    # accepts hexadecimal numbers, which have an x.
    with suppress(pa.ArrowInvalid):
        values = texts.cast(type_)
        if not any(pc.any(pc.match_substring(texts, letter)).as_py() for letter in "xX"):
            return values
    return _cast(pc.replace_substring_regex(_only(texts, INTEGER), r"^\+", ""), type_)


def _decimals(texts: pa.StringArray, type_: pa.Decimal128Type) -> pa.Array:
    # Surplus zeros after the fraction, and a point without one, change no value: they are cut for Arrow's cast. The
    # second _only() refuses texts without any digit, such as a sign, which the first accepts.
    whole, scale = type_.precision - type_.scale, type_.scale
    fits = _only(_only(texts, rf"^[+-]?0*[0-9]{{0,{whole}}}(\.[0-9]{{0,{scale}}}0*)?$"), "[0-9]")
    digits = pc.replace_substring_regex(fits, r"^\+", "")
    exact = pc.replace_substring_regex(digits, rf"(\.[0-9]{{{scale}}})0+$", r"\1") if scale else digits
    return _cast(pc.replace_substring_regex(exact, r"([0-9])\.0*$", r"\1"), type_)


def _reals(texts: pa.StringArray, type_: pa.DataType) -> pa.Array:
    # As in _integers(), the cast comes first because it is faster.
    try:
        values = texts.cast(type_)
    except pa.ArrowInvalid:
        named = pc.is_in(texts, pa.array([*NOT_FINITE]))
        numbers = pc.replace_substring_regex(_only(texts, REAL), r"^\+", "")
        values = _cast(pc.if_else(named, texts, numbers), type_)
    if not pc.all(pc.is_finite(values)).as_py():
        # Arrow also accepts other names of NaN and infinity, and reads a number that is too large as infinity.
        named = pc.is_in(texts, pa.array([*NOT_FINITE]))
        values = pc.if_else(pc.or_(pc.is_finite(values), named), values, None)
    zero = pc.equal(values, 0)
    if pc.any(zero).as_py():
        # A number so small that it became 0 is wrong: it has a digit other than 0 before its exponent.
        too_small = pc.match_substring_regex(_where(texts, zero), r"^[^eE]*[1-9]")
        values = pc.if_else(pc.fill_null(too_small, False), None, values)
    # A whole number that the type can't hold exactly is wrong, too. Shorter texts are always exact.
    long = pc.greater(pc.binary_length(texts), EXACT_DIGITS[type_])
    if pc.any(long).as_py():
        whole = pc.match_substring_regex(_where(texts, long), WHOLE)
        cells = zip(*(array.to_pylist() for array in (texts, values, whole)), strict=True)
        wrong = [
            bool(is_whole) and value is not None and Decimal(value) != Decimal(text) for text, value, is_whole in cells
        ]
        values = pc.if_else(pa.array(wrong), None, values)
    return values


def _where(texts: pa.StringArray, mask: pa.BooleanArray) -> pa.StringArray:
    """Returns the texts for which the mask is true, null for others."""
    return pc.if_else(mask, texts, None)


def _booleans(texts: pa.StringArray, spelling: Spelling) -> pa.Array:
    true, false = (
        [text] if text else [*default] for text, default in zip(spelling.booleans, (TRUE, FALSE), strict=True)
    )
    is_true, is_false = (pc.is_in(texts, pa.array(spelt)) for spelt in (true, false))
    return pc.if_else(is_true, True, pc.if_else(is_false, False, pa.scalar(None, pa.bool_())))


def _dates(texts: pa.StringArray) -> pa.Array:
    values = _cast(texts, pa.date32())
    # Only a lower bound: Arrow reads no date whose year has more than four digits.
    return pc.if_else(pc.less(values, pa.scalar(date.min)), None, values)


def _times(texts: pa.StringArray) -> pa.Array:
    return _cast(_micros(_only(texts, f"{TIME}$")), pa.timestamp("us"))


def _instants(texts: pa.StringArray, zone: str) -> pa.Array:
    utc = pa.timestamp("us", "UTC")
    with_offset = _only(texts, TIME + ZONE)
    values = _cast(_micros(with_offset), utc)
    if not zone:
        return _in_range(values)
    local = _times(pc.if_else(pc.is_null(with_offset), texts, None))
    # In the hour that a clock change repeats or skips, earliest and latest differ: such a time is no instant.
    first, last = (
        pc.assume_timezone(local, zone, ambiguous=one, nonexistent=one).cast(utc) for one in ("earliest", "latest")
    )
    return _in_range(pc.coalesce(values, pc.if_else(pc.equal(first, last), first, None)))


def _in_range(values: pa.TimestampArray) -> pa.TimestampArray:
    """Returns the instants; null outside FIRST to LAST, where an offset can move a time of the first or last year."""
    return pc.if_else(pc.or_(pc.less(values, FIRST), pc.greater(values, LAST)), None, values)


def _micros(texts: pa.StringArray) -> pa.StringArray:
    """Cuts zeros after six digits of a fraction: Arrow refuses a seventh."""
    return pc.replace_substring_regex(texts, r"(\.[0-9]{6})0+", r"\1")
