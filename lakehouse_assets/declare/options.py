"""A table's options for maintenance and arrivals, and the check of all options' values."""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import timedelta
from enum import Enum, StrEnum
from functools import lru_cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


class Level(StrEnum):
    """Kinds of maintenance, as jobs name them.

    Examples:
        >>> from lakehouse_assets import Level, Maintenance
        >>> Maintenance(without=[Level.EXPIRE]).without
        [<Level.EXPIRE: 'expire'>]
    """

    FRAGMENTS = "fragments"
    """Combines files of at most an eighth of the target size."""
    UNDERSIZED = "undersized"
    """Combines files of at most three quarters of the target size."""
    SORT = "sort"
    """Sorts files by the sort order, or by ``zorder``."""
    DELETES = "deletes"
    """Applies delete files to their rows."""
    MANIFESTS = "manifests"
    """Merges small manifests."""
    EXPIRE = "expire"
    """Expires snapshots past their retention time."""
    COLLECT = "collect"
    """Moves files that nobody needs to the trash."""


class RowProof(StrEnum):
    """How a rewrite proves that it keeps all rows."""

    ROWS = "rows"
    """By a digest of all rows, read back from storage."""
    COUNTS = "counts"
    """By the row count, without a second read."""


MANAGED_LEVELS = frozenset(Level) - {Level.MANIFESTS}
"""The levels that S3 Tables runs on every table, and Glue if enabled:
https://docs.aws.amazon.com/AmazonS3/latest/userguide/s3-tables-maintenance.html,
https://docs.aws.amazon.com/glue/latest/dg/table-optimizers.html"""


@dataclass(frozen=True)
class Maintenance:
    """How a table is maintained.

    Examples:
        >>> from lakehouse_assets import Maintenance
        >>> Maintenance(zorder=("origin", "dest"), weight=2).weight
        2
    """

    weight: float = 1.0
    """The table's weight, against 1 for others, if the budget is too small for all."""
    quiet_period: timedelta = timedelta(minutes=15)
    """How long a partition is not rewritten after a write."""
    without: Collection[Level] = ()
    """Levels to skip."""
    managed: bool = False
    """Whether the catalog's own optimizer (Glue) runs MANAGED_LEVELS. Not needed for S3 Tables, which are known to be
    managed."""
    proof: RowProof = RowProof.ROWS
    """How each rewrite is proved before it lands."""
    zorder: Sequence[str] = ()
    """Columns by which the level ``sort`` orders rows, instead of the table's sort order."""


def care_problem(care: Maintenance) -> str | None:
    """Returns why a table can't be maintained with these options, or None."""
    if not (math.isfinite(care.weight) and care.weight > 0):
        return f"maintenance has weight={care.weight!r}, it must be a number above 0"
    if care.quiet_period < timedelta(0):
        return f"maintenance has quiet_period={care.quiet_period}, it must be a timedelta of 0 or more"
    return None


FIELD = re.compile(r"\{([^{}]*)\}")
"""A field of a pattern; the group is its name."""


@dataclass(frozen=True)
class Pace:
    """How soon and how often a table's partitions run as messages come.

    Examples:
        >>> from datetime import timedelta
        >>> from lakehouse_assets import Arrivals, Pace
        >>> Arrivals("orders/{day}.csv.gz", Pace(floor=10, latency=timedelta(minutes=5))).pace.floor
        10
    """

    floor: int = 1
    """The number of partitions that start a run at once; fewer wait until the oldest has waited for ``latency``."""
    latency: timedelta = timedelta(seconds=60)
    """The longest wait of fewer partitions than ``floor``."""
    ceiling: int = 400
    """The most partitions of one run."""
    runs: int = 1
    """The most runs at once."""
    tries: int = 4
    """Failed runs after which a person must handle the partition."""
    backoff: timedelta = timedelta(seconds=60)
    """The wait after a partition's first failure; it doubles each time, up to an hour."""


@dataclass(frozen=True)
class Arrivals:
    """The objects that a table's partitions are made of.

    Examples:
        >>> from lakehouse_assets import Arrivals
        >>> Arrivals("orders/{day}.csv.gz").pattern
        'orders/{day}.csv.gz'
    """

    pattern: str
    """A pattern of keys within the domain's part of the drop zone, such as ``flights/{flight_date}.csv.gz``. Each field
    in braces is a partition dimension, named like its column, and matches its part of the partition key. ``*`` matches
    anything but a slash. Without partitions, there are no fields."""
    pace: Pace = field(default_factory=Pace)
    """How soon and how often the table's partitions run."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The pattern's fields, in order."""
        return tuple(FIELD.findall(self.pattern))

    def partition_key(self, key: str, dimensions: Mapping[str, str]) -> str | None:
        """Returns the partition key of an object's key, "" without partitions; None if the pattern does not match.

        dimensions: by name, in the order of a multi-partition key, the regular expressions of their keys, without
        groups. They decide where a field ends. If they don't match, a field matches any text up to a slash, so that
        the caller can say which key is wrong.
        """
        forms = tuple(dimensions[name] for name in self.fields)
        any_text = ("[^/]+",) * len(forms)
        found = _arrived(self.pattern, forms).fullmatch(key) or _arrived(self.pattern, any_text).fullmatch(key)
        if found is None:
            return None
        of_field = dict(zip(self.fields, found.groups(), strict=True))
        return "|".join(of_field[name] for name in dimensions)


@lru_cache
def _arrived(pattern: str, forms: tuple[str, ...]) -> re.Pattern[str]:
    """Returns the expression of a pattern's keys, with a group for each field. forms: the fields' own expressions."""
    literals = FIELD.split(pattern)[::2]  # every other one is a field's name
    parts = [re.escape(literal).replace(r"\*", "[^/]*") for literal in literals]
    # One more literal than fields: nothing follows the last one.
    groups = [*(f"({form})" for form in forms), ""]
    return re.compile("".join(part + group for part, group in zip(parts, groups, strict=True)), re.DOTALL)


def arrivals_problem(arrivals: Arrivals, dimensions: Sequence[str]) -> str | None:
    """Returns why the pattern yields no partition keys, or why the pace allows no runs; None if all is well."""
    pattern, fields = arrivals.pattern, arrivals.fields
    if not pattern or pattern.startswith("/") or "{" in FIELD.sub("", pattern) or "}" in FIELD.sub("", pattern):
        return f"arrivals has the pattern {pattern!r}, it must be a key without a leading slash, with fields in braces"
    if len(set(fields)) != len(fields) or set(fields) != set(dimensions):
        expected = ", ".join(f"{{{name}}}" for name in dimensions) or "no field"
        found = ", ".join(f"{{{name}}}" for name in fields) or "none"
        return (
            f"arrivals has the pattern {pattern!r}, which yields no partition key: expected {expected}, found {found}"
        )
    if "}{" in pattern:
        return f"arrivals has the pattern {pattern!r}: it doesn't show where one field ends and the next begins"
    return _pace_problem(arrivals.pace)


def _pace_problem(pace: Pace) -> str | None:
    for option in ("floor", "ceiling", "runs", "tries"):
        if (number := getattr(pace, option)) < 1:
            return f"arrivals.pace has {option}={number}, it must be a whole number of 1 or more"
    if pace.latency < timedelta(0):
        return f"arrivals.pace has latency={pace.latency}, it must be a timedelta of 0 or more"
    if pace.backoff <= timedelta(0):
        return f"arrivals.pace has backoff={pace.backoff}, it must be a timedelta above 0"
    return None


# https://iceberg.apache.org/docs/1.12.0/configuration/
DISTRIBUTIONS, ISOLATIONS = ("none", "hash", "range"), ("serializable", "snapshot")
PLANNING = ("auto", "local", "distributed")
WORDS = {
    **{f"write.{verb}distribution-mode": DISTRIBUTIONS for verb in ("", "delete.", "update.", "merge.")},
    **{f"write.{verb}.isolation-level": ISOLATIONS for verb in ("delete", "update", "merge")},
    # Without write.merge.mode: Merge(rewrites=…) takes its place, and refuses the property.
    **{f"write.{verb}.mode": ("copy-on-write", "merge-on-read") for verb in ("delete", "update")},
    **{f"read.{kind}-planning-mode": PLANNING for kind in ("data", "delete")},
    "write.parquet.compression-codec": ("zstd", "brotli", "lz4", "lz4_raw", "lzo", "gzip", "snappy", "uncompressed"),
    "write.orc.compression-codec": ("zstd", "lz4", "lzo", "zlib", "snappy", "none"),
    "write.metadata.compression-codec": ("none", "gzip"),
}
"""The allowed values of properties; upper and lower case count as equal."""
NAMES = {bool: "True or False", int: "a whole number", float: "a number"}
"""How messages name simple types."""
NUMBER = re.compile(
    r"write\.(delete\.)?target-file-size-bytes|write\.spark\.advisory-partition-size-bytes"
    r"|write\.(delete\.)?parquet\.(row-group-size-bytes|page-size-bytes|page-row-limit|dict-size-bytes)"
    r"|write\.orc\.(stripe|block)-size-bytes|read\.split\.(target-size|planning-lookback|open-file-cost)"
    r"|write\.metadata\.previous-versions-max|commit\.retry\.num-retries|commit\.manifest\.target-size-bytes"
)
"""The names of properties whose value is a whole number."""


def mistyped(declared: Any, path: str = "") -> Iterator[str]:
    """Yields a sentence for each option with a value of the wrong type.

    declared: a dataclass; dataclasses within it are checked too. path: where it is, such as ``arrivals.``
    """
    # Not pydantic: it converts values, and makes Dagster's named tuples of any tuple.
    hints = _hints(declared.__class__)
    for option in fields(declared):
        value = getattr(declared, option.name)
        within = [
            found
            for held in (value if type(value) in (list, tuple) else (value,))
            if is_dataclass(held) and not isinstance(held, type)
            for found in mistyped(held, f"{path}{option.name}.")
        ]
        yield from within
        # Not if ``within`` has problems: isinstance() with the protocol WriteMode reads a mode's properties, which
        # raise if the mode holds a value of another type.
        if not within and not _fits(value, hints[option.name]):
            yield f"{path}{option.name} is {reprlib.repr(value)}, {_wanted(hints[option.name], str(option.type))}"


@lru_cache(maxsize=64)
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _wanted(hint: Any, annotation: str) -> str:
    """Says what was expected. annotation: the hint as the class spells it, for types that have no words in NAMES."""
    if get_origin(hint) is Literal:
        return f"expected one of {', '.join(get_args(hint))}"
    # Of a union, such as timedelta | None, the message names the first type.
    one = next(iter(get_args(hint)), hint) if get_origin(hint) in (Union, UnionType) else hint
    kind = get_origin(one) or one
    known = [
        f"expected one of {', '.join(of)}"
        for of in (kind, *get_args(one))
        if isinstance(of, type) and issubclass(of, Enum)
    ]
    # Texts and named tuples are collections, too, but have no arguments.
    if issubclass(kind, Collection) and get_args(one):
        shape = "dict" if issubclass(kind, Mapping) else "list"
        return "; ".join([f"it must be a {shape} of the type {annotation}", *known])
    return known[0] if known else f"it must be {NAMES.get(kind, f'of the type {annotation}')}"


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the annotated type.

    Strings and named tuples (such as Dagster's keys) are not lists, True is not a number; an enum's value counts as its
    member.
    """
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        return any(_fits(value, one) for one in arguments)
    if kind is Literal:
        return value in arguments
    if issubclass(kind, Enum):
        return value in [*kind]
    if kind in (int, float):
        # An int passes for a float; isinstance() would also take True for an int.
        return type(value) in (int, kind)
    # A class, such as Overwrite instead of Overwrite(), would pass for the protocol WriteMode.
    if not isinstance(value, kind) or isinstance(value, type):
        return False
    if issubclass(kind, Mapping):
        return all(_fits(part, of) for item in value.items() for part, of in zip(item, arguments, strict=True))
    if issubclass(kind, Collection) and arguments:
        is_list = not (isinstance(value, str) or hasattr(value, "_fields"))
        return is_list and all(_fits(part, arguments[0]) for part in value)
    return True


def property_problems(properties: Mapping[str, str]) -> Iterator[str]:
    """Yields a problem for each value that its property doesn't allow."""
    for name, value in properties.items():
        if name in WORDS and value.lower() not in WORDS[name]:
            yield f"properties has {name}={value!r}, expected one of {', '.join(WORDS[name])}"
        elif NUMBER.fullmatch(name) and not re.fullmatch(r"[+-]?\d+", value, re.ASCII):
            yield f"properties has {name}={value!r}, it must be a whole number"
