"""Dates and times in other forms than ISO 8601, by a pattern such as ``dd.MM.yyyy HH:mm``.

The letters are those of Spark's patterns (https://spark.apache.org/docs/latest/sql-ref-datetime-pattern.html).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, cached_property

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
"""A pattern's letters and the texts that they stand for; ``S``, once for each digit of a fraction, beside them.
The year of ``yy`` is one of 2000 to 2099, as in Spark."""
TOKEN = re.compile(r"(?P<letters>([A-Za-z])\2*)|'(?P<quoted>[^']*)'|(?P<other>.)", re.DOTALL)
DATE_PARTS = frozenset({"year", "day"})


@dataclass(frozen=True)
class TimePattern:
    """A pattern of dates or times. Raises ValueError where its letters are none that it knows, or lack a part."""

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
                parts.append(re.escape(token["quoted"] or token["other"] or "'"))
            elif set(letters) == {"S"} and len(letters) <= len("nnnnnnnnn"):
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
        """Tells whether one text has this form; whether there is such a day is not known."""
        return re.fullmatch(self._regex, text) is not None

    def to_iso(self, texts: pa.StringArray) -> pa.StringArray:
        """Returns the texts as ISO 8601 has them; null in place of those of another form."""
        found = pc.extract_regex(texts, self._regex)
        names = {found.type.field(i).name for i in range(found.type.num_fields)}

        def part(name: str, default: str, digits: int = 2) -> pa.Array | str:
            return pc.utf8_lpad(pc.struct_field(found, name), digits, "0") if name in names else default

        year = part("year", "")
        if "yy" in re.findall("y+", self.text):
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
        short = pc.utf8_slice_codeunits(names, 0, 3)
        numbers = pa.array([f"{n:02}" for n in range(1, 13)])
        return numbers.take(pc.index_in(short, pa.array(MONTHS)))

    @staticmethod
    def _hour(found: pa.StructArray) -> pa.StringArray:
        half = pc.struct_field(found, "half").cast(pa.int32())
        past_noon = pc.equal(pc.utf8_upper(pc.struct_field(found, "noon")), "PM")
        morning = pc.if_else(pc.equal(half, 12), 0, half)
        hours = pc.if_else(past_noon, pc.add(morning, 12), morning)
        return pc.utf8_lpad(hours.cast(pa.string()), 2, "0")


@cache
def time_pattern(text: str) -> TimePattern:
    """Returns the pattern of a text, made once. Raises ValueError as TimePattern does."""
    return TimePattern(text)
