"""What a cell of a text file stands for, by plain Python and type by type, and a source of nasty cells.
Written apart from the grammar that reads files, to be compared with it: it imports nothing of lakehouse_assets."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from fractions import Fraction
from random import Random

TYPES = (
    *("int", "long", "float", "double", "decimal(9,2)", "decimal(5,5)", "decimal(38,10)"),
    *("boolean", "date", "timestamp", "timestamptz", "string"),
)
DIGITS = re.compile(r"[+-]?[0-9]+")
WHOLE = re.compile(r"[+-]?[0-9]+(\.0*)?")
PLAIN = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)")
NUMBER = re.compile(PLAIN.pattern + r"([eE][+-]?[0-9]+)?")
DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
TIME = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?")
ZONE = re.compile(r"Z|([+-])([0-9]{2})(?::?([0-9]{2}))?")
FARTHEST = timedelta(hours=18)
"""From UTC, as java.time.ZoneOffset has it."""
LONGEST = 3000
"""Digits that no value needs, below those at which Python's int() gives up (sys.get_int_max_str_digits)."""
NOT_FINITE = {
    "NaN": math.nan,
    "nan": math.nan,
    "Infinity": math.inf,
    "inf": math.inf,
    "-Infinity": -math.inf,
    "-inf": -math.inf,
}


class Refused(ValueError):
    """The text stands for no value of the type."""


def stands_for(type_: str, text: str) -> object:
    """Returns the value that a text stands for. Raises Refused.

    ``int``, ``long``: int. ``float``, ``double``: float. ``decimal(p,s)``: Decimal. ``boolean``: bool. ``date``: date.
    ``timestamp`` and ``timestamptz``: whole microseconds since 1970-01-01T00:00, of UTC for the latter, as an int.
    ``string``: the text.
    """
    return _reader(type_)(text)


def same(one: object, other: object) -> bool:
    """Says whether two values are the same: NaN is, 0.0 and -0.0 are not, nor are values of different types."""
    if isinstance(one, float) and isinstance(other, float):
        return struct.pack("d", one) == struct.pack("d", other) or (math.isnan(one) and math.isnan(other))
    return type(one) is type(other) and one == other


def _reader(type_: str) -> Callable[[str], object]:
    if found := re.fullmatch(r"decimal\(([0-9]+), ?([0-9]+)\)", type_):
        precision, scale = map(int, found.groups())
        return lambda text: _decimal(text, precision, scale)
    return READERS[type_]


def _integer(text: str, bits: int) -> int:
    if not DIGITS.fullmatch(text) or len(text) > LONGEST:
        raise Refused(text)
    if not -(2 ** (bits - 1)) <= (value := int(text)) < 2 ** (bits - 1):
        raise Refused(text)
    return value


def _double(text: str) -> float:
    return NOT_FINITE[text] if text in NOT_FINITE else _checked(text, float(_number(text)))


def _float(text: str) -> float:
    if text in NOT_FINITE:
        return NOT_FINITE[text]
    near = float(_number(text))
    if near == 0 or math.isinf(near):
        return _checked(text, near)
    # Not by way of the double: what is rounded twice may come out beside the float that is nearest.
    exact = Fraction(Decimal(text))
    if abs(exact) >= (Fraction(LARGEST_FLOAT) + Fraction(2) ** 128) / 2:
        raise Refused(text)
    guess = struct.unpack("f", struct.pack("f", math.copysign(min(abs(near), LARGEST_FLOAT), near)))[0]
    beside = (guess, _next_float(guess, 1), _next_float(guess, -1))
    nearest = min(beside, key=lambda f: (abs(Fraction(f) - exact), _bits(f) & 1))
    return _checked(text, math.copysign(nearest, near))


def _number(text: str) -> str:
    if not NUMBER.fullmatch(text):
        raise Refused(text)
    return text


def _checked(text: str, value: float) -> float:
    """The value, unless it is infinite, has become 0, or is not the integer that is written."""
    mantissa = re.split("[eE]", text)[0]
    if math.isinf(value) or (value == 0 and re.search("[1-9]", mantissa)):
        raise Refused(text)
    if WHOLE.fullmatch(text) and int(text.partition(".")[0]) != int(value):
        raise Refused(text)
    return value


def _bits(value: float) -> int:
    return int(struct.unpack("I", struct.pack("f", value))[0])


def _next_float(value: float, step: int) -> float:
    """The float that many steps farther from 0; the largest and 0 have none beyond."""
    sign, size = _bits(value) & 0x80000000, (_bits(value) & 0x7FFFFFFF) + step
    return float(struct.unpack("f", struct.pack("I", sign | min(max(size, 0), 0x7F7FFFFF)))[0])


LARGEST_FLOAT = float(struct.unpack("f", struct.pack("I", 0x7F7FFFFF))[0])


def _decimal(text: str, precision: int, scale: int) -> Decimal:
    if not PLAIN.fullmatch(text):
        raise Refused(text)
    exact = Context(prec=len(text) + 1).create_decimal(text)
    whole, _, fraction = text.lstrip("+-").partition(".")
    if len(whole.lstrip("0")) > precision - scale or len(fraction.rstrip("0")) > scale:
        raise Refused(text)
    return Context(prec=precision + scale + len(text)).quantize(exact, Decimal(1).scaleb(-scale))


def _boolean(text: str) -> bool:
    for value in (True, False):
        if text in (str(value), str(value).lower(), str(value).upper()):
            return value
    raise Refused(text)


def _date(text: str) -> date:
    if not DAY.fullmatch(text):
        raise Refused(text)
    try:
        return date(int(text[:4]), int(text[5:7]), int(text[8:]))
    except ValueError as error:
        raise Refused(text) from error


def _timestamp(text: str) -> int:
    if not (found := TIME.fullmatch(text)):
        raise Refused(text)
    day, hour, minute, second, fraction = found.groups(default="0")
    if not re.fullmatch("0*", fraction[6:]):
        raise Refused(text)
    try:
        instant = datetime.fromisoformat(f"{_date(day)}T{hour}:{minute}:{int(second):02}")
    except ValueError as error:
        raise Refused(text) from error
    # Since Python 3.13 it takes 24:00 for the next day's beginning.
    if hour == "24":
        raise Refused(text)
    return _micros(instant - EPOCH) + int(fraction[:6].ljust(6, "0"))


def _timestamptz(text: str) -> int:
    # The zone ends the text, and a time without one has neither Z nor a sign behind its tenth character.
    at = min((i for i in (text.find(mark, 10) for mark in "Z+-") if i >= 0), default=len(text))
    if not (found := ZONE.fullmatch(text[at:])):
        raise Refused(text)
    sign, hours, minutes = found.groups(default="0")
    offset = timedelta(hours=int(hours), minutes=int(minutes))
    if int(minutes) > 59 or offset > FARTHEST:
        raise Refused(text)
    instant = _timestamp(text[:at]) - _micros(-offset if sign == "-" else offset)
    if not FIRST <= instant <= LAST:
        raise Refused(text)
    return instant


def _micros(span: timedelta) -> int:
    return span // timedelta(microseconds=1)


EPOCH = datetime(1970, 1, 1)
FIRST, LAST = _micros(datetime.min - EPOCH), _micros(datetime.max - EPOCH)
"""Of the years 0001 to 9999, also for an offset that leads out of them."""
READERS: dict[str, Callable[[str], object]] = {
    "int": lambda text: _integer(text, 32),
    "long": lambda text: _integer(text, 64),
    "float": _float,
    "double": _double,
    "boolean": _boolean,
    "date": _date,
    "timestamp": _timestamp,
    "timestamptz": _timestamptz,
    "string": lambda text: text,
}


NASTY_WORDS = """
    \ufeff1 +1 -1 --1 +-1 -+1 1- 1+ + - \u22121 (1) -0 +0 00 007 1. .5 -.5 . -. +. 1..2 1.2.3 1,5 1,000 1.000,5
    1'000 1_000 _1 1_ 1e5 1E5 1e+5 1e-5 1e e5 1e5.0 1.e5 .5e5 1e400 1e-400 -1e400 0e999 1e38 3.5e38 1e39 1e-45
    1e-46 1d 7f 12d 1L 1f 0x1F 0X1p3 0b1 0o7 1e5f \u0661\u0662 \u0967\u0968 \uff11\uff12 \u00b2 \u00bd \u216b
    1\u0662 \u0660.\u0665 1e\u0665 \U0001d7cf\U0001d7d0 \u09ea \u4e00 nan NaN NAN Nan +NaN -nan inf Inf INF -inf
    +inf Infinity -Infinity infinity INFINITY +Infinity 1.#INF 1.#QNAN nan(1) NA null NULL None N/A \\N true TRUE
    True tRUE false False FALSE FaLSE t f T F yes NO y on tru\u0435 \uff54\uff52\uff55\uff45 truefalse 0 1
    fa\u017fe fal\u017fe 2023-02-29 2024-02-29 1900-02-29 2000-02-29 2023-00-10 2023-13-01 2023-01-00 2023-01-32
    2023-04-31 0000-01-01 0001-01-01 9999-12-31 10000-01-01 +2023-01-01 -0001-01-01 23-01-01 20230101 2026 2026-05
    2026-1-5 2026-W01-1 2026-001 2026/01/05 05.01.2026 2026-01-05Z 2026-01-05+01:00 2026-01-05T
    \u0662\u0660\u0662\u0666-01-05 2026\u201001\u201005 epoch today 2026-01-05T24:00 2026-01-05T24:00:00
    2026-01-05T23:59:60 2026-01-05T23:60 2026-01-05T1:00 2026-01-05T10 2026-01-05T10:00 2026-01-05t10:00
    2026-01-0510:00 2026-01-05_10:00 2026-01-05T1000 20260105T100000Z 2026-01-05T10:00:00. 2026-01-05T10:00:00.1
    2026-01-05T10:00:00,1 2026-01-05T10:00.5 2026-01-05T10:00:00.123456 2026-01-05T10:00:00.1234560
    2026-01-05T10:00:00.123456001 2026-01-05T10:00:00.123456000 2026-01-05T10:00:00.1234560000
    2026-01-05T10:00:00.\u0665 2026-01-05T10:00Z 2026-01-05T10:00z 2026-01-05T10:00ZZ 2026-01-05T10:00UTC
    2026-01-05T10:00+01 2026-01-05T10:00+0100 2026-01-05T10:00+01:00 2026-01-05T10:00+1:00 2026-01-05T10:00+1
    2026-01-05T10:00+01:0 2026-01-05T10:00+01:00:00 2026-01-05T10:00+18:00 2026-01-05T10:00-18
    2026-01-05T10:00+18:01 2026-01-05T10:00+19 1+01:00 2026-01-05T10:00+00:60 2026-01-05T10:00-00:00
    2026-01-05T10:00\u221201:00 2026-01-05T10:00[UTC] 10:00 10:00:00Z Z +01:00 T T10:00 0001-01-01T00:00+18:00
    9999-12-31T23:59:59.999999-18:00 2026-02-30T10:00Z 1767607200 46027.4166 16777216 16777217 -16777217
    9007199254740992 9007199254740993 16777217.0 0.1 1e23 2147483647 2147483648 -2147483648 -2147483649
    9223372036854775807 9223372036854775808 -9223372036854775808 -9223372036854775809 18446744073709551615
    340282346638528859811704183484516925440 340282356779733661637539395458142568447
    340282356779733661637539395458142568448.0 1.7976931348623159e308 1.00000017881393432617187499
    1.00000017881393432617187501 7.006492321624085e-46 7.0064923216240854e-46 2.4703282292062327e-324
    2.4703282292062328e-324 2.50 2.555 2.550 9999999.99 10000000 0.99999 0.100000 0.000001 00000000000001.50
    -9999999.990 1e2
"""
"""Without blanks, which lie between them."""
NASTY = (
    *NASTY_WORDS.split(),
    *("", " ", "\t", "\x00", "1\x00", "\u00a01", "1\u00a0", "1\n", "\n1", "1\r", " 1", "1 ", "1 2", "\u20091"),
    *("- 1", "+ 1", "1e 5", "true ", " true", "2026-01-05 ", "2026-01-05 or so", "2026-01-05 10:00"),
    *("2026-01-05  10:00", "2026-01-05\t10:00", "2026-01-05\u00a010:00", "2026-01-05T10:00 Z"),
    *("2026-01-05T10:00 +01:00", "2026-01-05T10:00 Europe/Berlin", "2026-01-05T10:00 CET"),
    *("1" * 400, "0" * 400 + "1", "0." + "0" * 400 + "1"),
)  # fmt: skip
ALPHABET = "0123456789" * 3 + "+-.,:eETZ _/xdfLn\t\n\r\0'\"\u00a0\u2212\u0663\uff11\ufeffä"


def cells(type_: str, count: int, seed: int) -> Iterator[str]:
    """Yields texts for a type, the same for the same seed: nasty ones, then good ones, many of them spoilt."""
    random = Random(f"{seed} {type_}")
    fixed = NASTY[:count]
    yield from fixed
    for _ in range(count - len(fixed)):
        text = _good(random.choice(TYPES) if random.random() < 0.1 else type_, random)
        for _ in range(random.choice((0, 0, 1, 1, 2))):
            text = _spoilt(text, random)
        yield text


def _spoilt(text: str, random: Random) -> str:
    at = random.randrange(len(text) + 1)
    character = random.choice(ALPHABET)
    return random.choice(
        (
            text[:at] + character + text[at:],
            text[:at] + character + text[at + 1 :],
            text[:at] + text[at + 1 :],
            text[:at] + text[at:][1::-1] + text[at + 2 :],
            text[:at] + text[:at][-1:] + text[at:],
            text[:at],
            random.choice((text.upper(), text.lower(), text.swapcase())),
            random.choice((f" {text}", f"{text} ", f"'{text}'", text + text)),
        )
    )


def _good(type_: str, random: Random) -> str:
    """A text of the type, now and then one that is just beyond its range."""
    if type_ in ("int", "long"):
        edge = 2 ** (31 if type_ == "int" else 63)
        value = random.choice((random.randint(-edge, edge), random.choice((-edge, edge)) + random.randint(-2, 2)))
        value = random.choice((value, random.randint(-999, 999)))
        return f"{random.choice(('', '', '+')) if value >= 0 else ''}{value}"
    if type_ in ("float", "double"):
        return _good_float(24 if type_ == "float" else 53, random)
    if found := re.fullmatch(r"decimal\(([0-9]+),([0-9]+)\)", type_):
        precision, scale = map(int, found.groups())
        whole = _digits(random, random.choice((1, precision - scale, precision - scale, precision - scale + 1)))
        fraction = _digits(random, random.choice((1, scale, scale, scale + 1))) + "0" * random.choice((0, 0, 3))
        whole = "0" * len(whole) if precision == scale and random.random() < 0.8 else whole
        return random.choice(("", "", "-", "+")) + whole + (fraction and f".{fraction}")
    if type_ == "boolean":
        return random.choice(("true", "True", "TRUE", "false", "False", "FALSE"))
    if type_ == "string":
        return "".join(random.choices(ALPHABET, k=random.randrange(12)))
    if type_ == "date":
        return _good_date(random)
    time = f"{random.randint(0, 24):02}:{random.randint(0, 60):02}"
    if random.random() < 0.7:
        time += f":{random.randint(0, 60):02}"
        if random.random() < 0.6:
            time += "." + _digits(random, random.randint(1, 6)) + "0" * random.choice((0, 0, 1, 3))
    zone = random.choice(("Z", "+01:00", "-0530", "+02", f"{random.choice('+-')}{random.randint(0, 19):02}:00"))
    zone = zone if type_ == "timestamptz" or random.random() < 0.05 else ""
    return f"{_good_date(random)}{random.choice('T ')}{time}{zone}"


def _good_float(bits: int, random: Random) -> str:
    way = random.randrange(5)
    if way == 0:  # integers, of which those beyond 2**bits are not all there
        return str(random.choice((-1, 1)) * (2 ** random.randint(1, bits + 8) + random.randint(-2, 2)))
    if way == 1:  # halfway between two neighbours, and beside that
        exact = Decimal(2 ** (bits - 1) + random.randrange(2 ** (bits - 1))) + Decimal("0.5")
        exact += random.choice((Decimal(0), Decimal("1e-12"), Decimal("-1e-12")))
        return f"{Context(prec=60).multiply(exact, Context(prec=60).power(2, random.randint(-20, 20))):f}"
    if way == 2:  # any of the type's own
        form = "f" if bits == 24 else "d"
        value = struct.unpack(form, random.randbytes(struct.calcsize(form)))[0]
        return repr(value)  # of a float more digits than it needs
    whole, fraction = _digits(random, random.randint(0, 20)), _digits(random, random.randint(1, 20))
    exponent = f"{random.choice('eE')}{random.choice(('', '+', '-'))}{random.randint(0, 400 if way == 3 else 40)}"
    return f"{random.choice(('', '-', '+'))}{whole}.{fraction}{random.choice(('', exponent))}"


def _good_date(random: Random) -> str:
    if random.random() < 0.3:
        year, month, day = (
            random.choice((0, 1, 1900, 2000, 2023, 2024, 9999)),
            random.randint(1, 13),
            random.randint(27, 32),
        )
        return f"{year:04}-{month:02}-{day:02}"
    days = random.randrange((date.max - date.min).days + 1)
    return (datetime(1, 1, 1, tzinfo=UTC) + timedelta(days=days)).date().isoformat()


def _digits(random: Random, count: int) -> str:
    return "".join(random.choices("0123456789", k=count))
