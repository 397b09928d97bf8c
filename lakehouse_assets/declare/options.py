"""Options of a table: maintenance, arrivals, and the check of options' values.

The defaults maintain a table: nobody has to opt in.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import timedelta
from enum import Enum, StrEnum
from functools import cached_property, lru_cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


class Level(StrEnum):
    """The kinds of maintenance, by the names that jobs take.

    Example:
        >>> from lakehouse_assets import Level, Maintenance
        >>> Maintenance(without=[Level.EXPIRE]).without
        [<Level.EXPIRE: 'expire'>]
    """

    FRAGMENTS = "fragments"
    """Files of at most an eighth of the target size are put together."""
    UNDERSIZED = "undersized"
    """Files of at most three quarters of it are."""
    SORT = "sort"
    """Files are laid out by the sort order, or by ``zorder``."""
    DELETES = "deletes"
    """Delete files are applied to the rows that they name."""
    MANIFESTS = "manifests"
    """Small manifests are merged."""
    EXPIRE = "expire"
    """Snapshots that are past their time are forgotten."""
    COLLECT = "collect"
    """Files that nobody needs go to the trash."""


class RowProof(StrEnum):
    """The way in which a rewrite shows that its rows are the same before and after."""

    ROWS = "rows"
    """By a digest of all rows, read back from storage."""
    COUNTS = "counts"
    """By their number: a second reading is spared."""


MANAGED_LEVELS = frozenset(Level) - {Level.MANIFESTS}
"""The levels that S3 Tables runs on every table by itself, and Glue where it is switched on:
https://docs.aws.amazon.com/AmazonS3/latest/userguide/s3-tables-maintenance.html,
https://docs.aws.amazon.com/glue/latest/dg/table-optimizers.html"""


@dataclass(frozen=True)
class Maintenance:
    """The maintenance that a table is declared with.

    Example:
        >>> from lakehouse_assets import Maintenance
        >>> Maintenance(zorder=("origin", "dest"), weight=2).weight
        2
    """

    weight: float = 1.0
    """How much the table counts where the budget does not suffice for all tables, against 1 of the others."""
    quiet_period: timedelta = timedelta(minutes=15)
    """A partition that was written more recently than this is not rewritten yet."""
    without: Collection[Level] = ()
    """Levels that are left out."""
    managed: bool = False
    """Whether the catalog's own optimizer (Glue) looks after the table, so that MANAGED_LEVELS are left to it. For
    tables in S3 Tables it need not be set: they are known to be managed."""
    proof: RowProof = RowProof.ROWS
    """How each rewrite is proved before it lands."""
    zorder: Sequence[str] = ()
    """Columns by which the level ``sort`` lays rows out, in place of the table's sort order."""


def care_problem(care: Maintenance) -> str | None:
    """Says why a table can't be maintained like that; None if it can."""
    if not (math.isfinite(care.weight) and care.weight > 0):
        return f"maintenance has weight={care.weight!r}, it must be a number above 0"
    if care.quiet_period < timedelta(0):
        return f"maintenance has quiet_period={care.quiet_period}, it must be a timedelta of 0 or more"
    return None


FIELD = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class Pace:
    """The pace of a table's runs: how soon and how often its partitions are run as messages come.

    Example:
        >>> from datetime import timedelta
        >>> from lakehouse_assets import Arrivals, Pace
        >>> Arrivals("orders/{day}.csv.gz", Pace(floor=10, latency=timedelta(minutes=5))).pace.floor
        10
    """

    floor: int = 1
    """The number of partitions that are worth a run at once; fewer wait until the oldest has waited for ``latency``."""
    latency: timedelta = timedelta(seconds=60)
    """How long the oldest of fewer waits at most."""
    ceiling: int = 400
    """The most partitions of one run."""
    runs: int = 1
    """The most runs at once."""
    tries: int = 4
    """The number of failed runs after which a partition is left to a person."""
    backoff: timedelta = timedelta(seconds=60)
    """How long a partition waits after the first failure, then twice as long each time, an hour at most."""


@dataclass(frozen=True)
class Arrivals:
    """The objects of which a table's partitions are made.

    Example:
        >>> from lakehouse_assets import Arrivals
        >>> Arrivals("orders/{day}.csv.gz").pattern
        'orders/{day}.csv.gz'
    """

    pattern: str
    """A pattern of keys within the domain's part of the drop zone, such as ``flights/{flight_date}.csv.gz``. Each field
    in braces is one of the table's partition dimensions, named as its column, and stands for its part of the partition
    key. ``*`` stands for anything but a slash. A table without partitions has a pattern without fields."""
    pace: Pace = field(default_factory=Pace)
    """How soon and how often the table's partitions are run."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the pattern's fields, in its order."""
        return tuple(FIELD.findall(self.pattern))

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        literals = FIELD.split(self.pattern)[::2]  # every other one is a field's name
        parts = [re.escape(literal).replace(r"\*", "[^/]*") for literal in literals]
        groups = ["([^/]+)"] * len(self.fields)
        return re.compile("".join(part + group for part, group in zip(parts, [*groups, ""], strict=True)), re.DOTALL)

    def partition_key(self, key: str, dimensions: Sequence[str]) -> str | None:
        """Returns the Dagster partition key that an object's key stands for; None if it does not match the pattern.

        The key is "" for a table without partitions. Whether there is such a partition is not known here.

        dimensions: the names of the table's dimensions, in the order of a multi-partition key.
        """
        found = self._regex.fullmatch(key)
        if found is None:
            return None
        of_field = dict(zip(self.fields, found.groups(), strict=True))
        return "|".join(of_field[name] for name in dimensions)


def arrivals_problem(arrivals: Arrivals, dimensions: Sequence[str]) -> str | None:
    """Says why no partition key can come of the pattern, or nothing be run at the pace; None if all is well.

    dimensions: the same as for partition_key().
    """
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
        return f"arrivals has the pattern {pattern!r}: nothing tells where one field ends and the next begins"
    return _pace_problem(arrivals.pace)


def _pace_problem(pace: Pace) -> str | None:
    """Says why nothing could be run at such a pace; None if it can."""
    for option in ("floor", "ceiling", "runs", "tries"):
        if (number := getattr(pace, option)) < 1:
            return f"arrivals.pace has {option}={number}, it must be a whole number of 1 or more"
    if pace.latency < timedelta(0):
        return f"arrivals.pace has latency={pace.latency}, it must be a timedelta of 0 or more"
    if pace.backoff <= timedelta(0):
        return f"arrivals.pace has backoff={pace.backoff}, it must be a timedelta above 0"
    return None


# https://iceberg.apache.org/docs/1.12.0/configuration/
MODES, LEVELS = ("none", "hash", "range"), ("serializable", "snapshot")
PLANNING = ("auto", "local", "distributed")
WORDS = {
    **{f"write.{verb}distribution-mode": MODES for verb in ("", "delete.", "update.", "merge.")},
    **{f"write.{verb}.isolation-level": LEVELS for verb in ("delete", "update", "merge")},
    **{f"write.{verb}.mode": ("copy-on-write", "merge-on-read") for verb in ("delete", "update")},
    **{f"read.{kind}-planning-mode": PLANNING for kind in ("data", "delete")},
    "write.parquet.compression-codec": ("zstd", "brotli", "lz4", "lz4_raw", "lzo", "gzip", "snappy", "uncompressed"),
    "write.orc.compression-codec": ("zstd", "lz4", "lzo", "zlib", "snappy", "none"),
    "write.metadata.compression-codec": ("none", "gzip"),
}
"""The values that a property may have, by its name. Iceberg takes them in capitals as well."""
NAMES = {bool: "True or False", int: "a whole number", float: "a number"}
"""How messages call a type that is not called by its annotation."""
NUMBER = re.compile(
    r"write\.(delete\.)?target-file-size-bytes|write\.spark\.advisory-partition-size-bytes"
    r"|write\.(delete\.)?parquet\.(row-group-size-bytes|page-size-bytes|page-row-limit|dict-size-bytes)"
    r"|write\.orc\.(stripe|block)-size-bytes|read\.split\.(target-size|planning-lookback|open-file-cost)"
    r"|write\.metadata\.previous-versions-max|commit\.retry\.num-retries|commit\.manifest\.target-size-bytes"
)


def mistyped(declared: Any, path: str = "") -> Iterator[str]:
    """Finds the options that have a value of another type than their annotation, each as a sentence that names it.

    declared: a dataclass; dataclasses that its options hold are looked into. path: its place, such as ``arrivals.``
    """
    # pydantic is no help here: it converts values, and makes Dagster's named tuples of any tuple.
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
        # What a write mode is, its properties tell, which a value of another type within it keeps from being read.
        if not within and not _fits(value, hints[option.name]):
            yield f"{path}{option.name} is {reprlib.repr(value)}, {_wanted(hints[option.name], str(option.type))}"


@lru_cache(maxsize=64)
def _hints(kind: type) -> dict[str, Any]:
    """Reads the annotations of a class; once, as each table needs them."""
    return get_type_hints(kind)


def _wanted(hint: Any, annotation: str) -> str:
    """Says what an option takes, to end a sentence."""
    if get_origin(hint) is Literal:
        return f"known are {', '.join(get_args(hint))}"
    one = next(iter(get_args(hint)), hint) if get_origin(hint) in (Union, UnionType) else hint
    kind = get_origin(one) or one
    known = [
        f"known are {', '.join(of)}" for of in (kind, *get_args(one)) if isinstance(of, type) and issubclass(of, Enum)
    ]
    if issubclass(kind, Collection) and get_args(one):  # neither text nor a named tuple
        shape = "dict" if issubclass(kind, Mapping) else "list"
        return "; ".join([f"it must be a {shape} of the type {annotation}", *known])
    return known[0] if known else f"it must be {NAMES.get(kind, f'of the type {annotation}')}"


def _fits(value: Any, hint: Any) -> bool:
    """Says whether a value is of the annotated type.

    Neither a string nor a named tuple, as Dagster's keys are, is a list; no class is a value; True is no number; an
    enum's value counts as its member.
    """
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        return any(_fits(value, one) for one in arguments)
    if kind is Literal:
        return value in arguments
    if issubclass(kind, Enum):
        return value in [*kind]
    if kind in (int, float):
        return type(value) in (int, kind)
    if not isinstance(value, kind) or isinstance(value, type):
        return False
    if issubclass(kind, Mapping):
        return all(_fits(part, of) for item in value.items() for part, of in zip(item, arguments, strict=True))
    if issubclass(kind, Collection) and arguments:
        is_list = not (isinstance(value, str) or hasattr(value, "_fields"))
        return is_list and all(_fits(part, arguments[0]) for part in value)
    return True


def property_problems(properties: Mapping[str, str]) -> Iterator[str]:
    """Yields a problem for each value that is none of the words known for its property, or no whole number."""
    for name, value in properties.items():
        if name in WORDS and value.lower() not in WORDS[name]:
            yield f"properties has {name}={value!r}, known are {', '.join(WORDS[name])}"
        elif NUMBER.fullmatch(name) and not re.fullmatch(r"[+-]?\d+", value, re.ASCII):
            yield f"properties has {name}={value!r}, it must be a whole number"
