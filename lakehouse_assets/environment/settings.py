"""Reads and validates the environment's variables once; all defaults are here."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from lakehouse_assets.environment.computes import ComputeSettings, compute_variables, find_compute
from lakehouse_assets.environment.env_reader import BUCKET, ROLE, ROLE_EXAMPLE, EnvReader, SettingsError, redacted
from lakehouse_assets.environment.local_paths import folder_of, location_of
from lakehouse_assets.environment.machine import cache_folder, cores

QUEUE_URL = r"https?://[^/\s]+/(\S+/)?[A-Za-z0-9_-]{1,80}"
"""A standard queue: others' names end with .fifo
(https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-queue-message-identifiers.html)."""
QUEUE_EXAMPLE = "https://sqs.eu-central-1.amazonaws.com/123456789012/lakehouse"
# The default of LAKEHOUSE_QUEUE_RUNS.
QUEUE_RUNS = 4
NO_HOME = re.compile(r"\?|%[0-9A-Fa-f]{2}|,")
"""No part of a home's path: in Dagster's (1.13.27) SQLite URLs, ``?`` ends a path and ``%20`` is decoded;
spark.local.dir is a list with commas."""
PLACE = rf"(?!s3[an]?:).*|s3[an]?{BUCKET}"
"""A folder or a URL; one of S3 must name a bucket."""


@dataclass(frozen=True)
class QueueSettings:
    """The queue that requests partitions."""

    url: str
    """LAKEHOUSE_QUEUE."""
    dead_letters: str
    """LAKEHOUSE_QUEUE_DEAD_LETTERS, for messages that nobody can act on."""
    runs: int = QUEUE_RUNS
    """LAKEHOUSE_QUEUE_RUNS, the queue's most concurrent runs over all tables."""

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.url.rpartition("/")[2]

    @property
    def is_on_loopback(self) -> bool:
        """Whether only this machine reaches it, as with ``make ui QUEUE=1``."""
        return urlsplit(self.url).hostname in ("127.0.0.1", "localhost", "::1")


def read_queue(env: Mapping[str, str]) -> tuple[QueueSettings | None, list[str]]:
    """Returns the queue's settings, None without LAKEHOUSE_QUEUE; and a sentence for each problem."""
    if not env.get("LAKEHOUSE_QUEUE", "").strip():
        set_alone = [n for n in ("LAKEHOUSE_QUEUE_DEAD_LETTERS", "LAKEHOUSE_QUEUE_RUNS") if env.get(n, "").strip()]
        return None, [f"{name} is set, but LAKEHOUSE_QUEUE is not, so no queue is read" for name in set_alone]
    reader = EnvReader(env)
    reader.needed_by = "LAKEHOUSE_QUEUE"
    url = reader.text("LAKEHOUSE_QUEUE", QUEUE_URL, QUEUE_EXAMPLE)
    dead_letters = reader.text("LAKEHOUSE_QUEUE_DEAD_LETTERS", QUEUE_URL, f"{QUEUE_EXAMPLE}-dead-letters")
    runs = reader.number("LAKEHOUSE_QUEUE_RUNS", int)
    staging = env.get("LAKEHOUSE_STAGING", "").strip()
    if "://" in staging and not re.match("(s3[an]?|file)://", staging):
        reader.problems.append(
            f"LAKEHOUSE_STAGING={redacted(staging)} is neither a folder nor on S3: the inbox of LAKEHOUSE_QUEUE needs "
            "one"
        )
    if url == dead_letters:
        reader.problems.append("LAKEHOUSE_QUEUE_DEAD_LETTERS is the queue itself; choose another queue")
    return QueueSettings(url, dead_letters, runs or QUEUE_RUNS), reader.problems


Chosen = Mapping[str, Sequence[str]]
"""Compute → the identifiers of the tables that chose it."""
NOBODY: Chosen = MappingProxyType({})


@dataclass(frozen=True)
class Settings:
    """A code location's settings."""

    home: Path
    """LAKEHOUSE_HOME, absolute: embedded catalog, warehouse, Dagster's state, landing, reports."""
    cache: Path
    """LAKEHOUSE_CACHE, absolute: jars and class-data archives; shared by homes, safe to delete."""
    compute: str
    """LAKEHOUSE_COMPUTE, the tables' default."""
    computes: Mapping[str, ComputeSettings]
    """Those in use: LAKEHOUSE_COMPUTE's and those that tables choose."""
    landing: str
    """LAKEHOUSE_LANDING, the drop zone's prefix."""
    staging: str
    """LAKEHOUSE_STAGING, the prefix of plans, receipts and the queue's inbox."""
    max_workers: int
    """LAKEHOUSE_MAX_WORKERS, the limit of the pool ``lake_workers``."""
    spark_conf: Mapping[str, str] = field(repr=False)  # may hold secrets
    """``LAKEHOUSE_SPARK__a__b=v`` as Spark setting ``a.b``, case kept."""
    queue: QueueSettings | None = None
    maintenance_role: str | None = None
    """LAKEHOUSE_MAINTENANCE_ROLE, the role ARN of maintenance on ECS; None: that of all runs."""
    exclusive_prefix: str | None = None
    """LAKEHOUSE_EXCLUSIVE_PREFIX, a prefix below which, as a person knows, no table needs files of another's folder."""

    @property
    def by_hand(self) -> bool:
        """Whether a person starts runs, as on a laptop; elsewhere schedules and sensors start on."""
        return not find_compute(self.compute).remote


SPARK_PREFIX = "LAKEHOUSE_SPARK__"
NAMES = (
    *("HOME", "CACHE", "COMPUTE", "LANDING", "STAGING", "EXCLUSIVE_PREFIX", "MAX_WORKERS", "MAINTENANCE_ROLE"),
    *("QUEUE", "QUEUE_DEAD_LETTERS", "QUEUE_RUNS"),
    # The image, the workers and the tests read these.
    *("JAVA_HOME", "PARENT_PIPE", "CODE_SERVER_HOST", "REQUIRE_ALL", "TEST_IMAGE", "TEST_KILLS", "TEST_LAKES"),
    *("TEST_MODEL_TABLES", "TEST_ORDER"),
)
"""This project's variables without their prefix LAKEHOUSE_, except for those of computes."""
# Old name → new name.
RENAMED = {"UNSHARED": "EXCLUSIVE_PREFIX"}


def read_home(env: Mapping[str, str] = os.environ) -> Path:
    """Reads LAKEHOUSE_HOME alone, for code that must work even if another setting is wrong."""
    return _absolute(env.get("LAKEHOUSE_HOME", "").strip() or ".lakehouse")


def worker_settings() -> Settings:
    """Reads a worker's settings, without LAKEHOUSE_COMPUTE: the code location has decided where the worker runs.

    Raises as read_settings().
    """
    return read_settings({name: value for name, value in os.environ.items() if name != "LAKEHOUSE_COMPUTE"})


def read_settings(
    env: Mapping[str, str] = os.environ,
    also: Chosen = NOBODY,
    check: Callable[[Settings, Chosen], list[str]] = lambda settings, computes: [],
) -> Settings:
    """Reads the variables, stripped except for Spark's settings.

    also: the computes that tables choose. check: finds further problems, given all computes in use. Raises
    SettingsError naming all problems at once.
    """
    spark = {name.removeprefix(SPARK_PREFIX): value for name, value in env.items() if name.startswith(SPARK_PREFIX)}
    env = {name: value.strip() for name, value in env.items()}
    home = read_home(env)
    reader = EnvReader(env)
    compute = _compute(env, reader.problems)

    def place(name: str, default: str) -> str:
        return _prefix(reader.text(name, PLACE, "s3://bucket/prefix", default))

    computes, computes_problems = _computes(compute, also, env)
    queue, queue_problems = read_queue(env)
    settings = Settings(
        home=home,
        cache=cache_folder(env),
        compute=compute,
        computes=computes,
        landing=place("LAKEHOUSE_LANDING", str(home / "landing")),
        staging=place("LAKEHOUSE_STAGING", location_of(folder_of(home, "staging"))),
        max_workers=reader.number("LAKEHOUSE_MAX_WORKERS", int, most=1000) or max(1, cores() // 2),
        spark_conf={name.replace("__", "."): value for name, value in spark.items()},
        queue=queue,
        maintenance_role=reader.text("LAKEHOUSE_MAINTENANCE_ROLE", ROLE, ROLE_EXAMPLE, default="") or None,
        exclusive_prefix=place("LAKEHOUSE_EXCLUSIVE_PREFIX", "") if env.get("LAKEHOUSE_EXCLUSIVE_PREFIX") else None,
    )
    reader.problems += _unusable(settings.home, settings.cache)
    problems = reader.problems + computes_problems + queue_problems + check(settings, {compute: (), **also})
    if problems:
        raise SettingsError("\n".join(["the settings are not valid:", *problems] if len(problems) > 1 else problems))
    return settings


def chosen_by(compute: str, also: Chosen) -> str:
    """Names the first table that chose the compute; counts the others."""
    first, *more = also[compute]
    return f"table {first!r} and {len(more)} more" if more else f"table {first!r}"


def unknown_names(env: Mapping[str, str]) -> list[str]:
    """Returns a problem for each unknown or renamed LAKEHOUSE_ variable or Spark setting without dots.

    For code locations only: a worker's environment may have variables for others.
    """
    given = {name for name in env if name.startswith("LAKEHOUSE_") and not name.startswith(SPARK_PREFIX)}
    known = {f"LAKEHOUSE_{name}" for name in NAMES} | compute_variables() if given else set()
    renamed = {f"LAKEHOUSE_{old}": f"LAKEHOUSE_{new}" for old, new in RENAMED.items() if f"LAKEHOUSE_{old}" in given}
    unknown = sorted(given - known - renamed.keys())
    # Cutoff 0: the nearest name, however far.
    nearest = {name: get_close_matches(name.upper(), sorted(known), 1, cutoff=0)[0] for name in unknown}
    dotless = sorted(name for name in env if re.match(rf"{SPARK_PREFIX}(?!spark__)", name))
    example = f"write two underscores for a dot, as in {SPARK_PREFIX}spark__driver__memory"
    return [
        *(f"{old} is now called {new}: set that instead" for old, new in renamed.items()),
        *(f"{name} is unknown; did you mean {near}?" for name, near in nearest.items()),
        *(f"{name} is not a Spark setting: {example}" for name in dotless),
    ]


def _absolute(path: str) -> Path:
    return Path(path).expanduser().absolute()


def _unusable(home: Path, cache: Path) -> list[str]:
    problems = []
    if found := NO_HOME.search(str(home)):
        problems.append(
            f"LAKEHOUSE_HOME={home} contains {found[0]!r}, so Dagster or Spark would look for files elsewhere; choose "
            "another folder, or give the path of a link to it"
        )
    if os.pathsep in str(cache):
        problems.append(
            f"LAKEHOUSE_CACHE={cache} contains {os.pathsep!r}, which separates the entries of Java's class path; "
            "choose another folder"
        )
    return problems


def _prefix(place: str) -> str:
    """Makes a path absolute, but no URL: workers and servers have other working directories."""
    return place.rstrip("/") if re.match(r"\w[\w+.-]*:/", place) else str(_absolute(place))


def _compute(env: Mapping[str, str], problems: list[str]) -> str:
    value = (env.get("LAKEHOUSE_COMPUTE") or "local").lower()
    try:
        find_compute(value, "LAKEHOUSE_COMPUTE")
    except ValueError as error:
        problems.append(str(error))
        return "local"
    return value


def _computes(compute: str, also: Chosen, env: Mapping[str, str]) -> tuple[dict[str, ComputeSettings], list[str]]:
    # What needs each compute's settings, for messages: a table, if its compute isn't that of LAKEHOUSE_COMPUTE.
    needed_by = {compute: f"LAKEHOUSE_COMPUTE={compute}"}
    needed_by |= {name: f"{name}, chosen by {chosen_by(name, also)}," for name in also if name != compute}
    reader, found = EnvReader(env), dict[str, ComputeSettings]()
    for name, needing in needed_by.items():
        reader.needed_by = needing
        found[name] = find_compute(name).read(reader)
    # Remote workers reach no folder of this machine, so receipts must be on S3.
    if remote := next((name for name, settings in found.items() if settings.remote), None):
        reader.needed_by = needed_by[remote]
        staging = reader.text("LAKEHOUSE_STAGING", example="s3://bucket/staging")
        if staging and not staging.startswith("s3:"):
            needs = f"({reader.needed_by} needs one)"
            reader.problems += [f"LAKEHOUSE_STAGING={redacted(staging)} is not an s3:// prefix {needs}"]
    return found, list(dict.fromkeys(reader.problems))
