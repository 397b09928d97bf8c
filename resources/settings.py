"""Reads the environment's variables, and validates them, once into one frozen object.

No client and no file is opened; for the default of LAKEHOUSE_MAX_WORKERS an ECS task's size may be asked for.
Defaults are only here: every other module takes a Settings.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any

from resources.computes import Ecs, Emr, EmrServerless, read_ecs, read_emr, read_emr_serverless
from resources.env_reader import BUCKET, EnvReader
from resources.machine import cores
from resources.queue_settings import QueueSettings, read_queue
from resources.secrets import shown


class SettingsError(ValueError):
    """The environment's settings can't work; the message lists every problem with its variable's name."""


class Compute(StrEnum):
    """The places where workers can run (LAKEHOUSE_COMPUTE)."""

    INLINE = "inline"
    LOCAL = "local"
    ECS = "ecs"
    EMR = "emr"
    EMR_SERVERLESS = "emr_serverless"


Chosen = Mapping[Compute, Sequence[str]]
"""Computes, each with the identifiers of the tables that chose it for themselves."""
NOBODY: Chosen = MappingProxyType({})


@dataclass(frozen=True)
class Settings:
    """One code location's settings."""

    home: Path
    """LAKEHOUSE_HOME, absolute: the embedded catalog, its warehouse, Dagster's state, landing and reports."""
    cache: Path
    """LAKEHOUSE_CACHE, absolute: jars and the class-data archive; shared by homes, safe to delete."""
    compute: Compute
    """LAKEHOUSE_COMPUTE, where workers run unless their table has a compute of its own."""
    landing: str
    """LAKEHOUSE_LANDING, the drop zone's prefix: a path or a URL; default ``<home>/landing``."""
    staging: str
    """LAKEHOUSE_STAGING, the prefix of receipts: a path or a URL; default the URL of ``<home>/staging``."""
    max_workers: int
    """LAKEHOUSE_MAX_WORKERS, the limit of the pool ``lake_workers``; default 1 for each 2 cores, at least 1."""
    spark_conf: Mapping[str, str] = field(repr=False)  # may hold secrets
    """Every ``LAKEHOUSE_SPARK__a__b=v`` as Spark setting ``a.b`` (two underscores for a dot, case kept)."""
    ecs: Ecs | None = None
    """What ECS needs; None where it is not used."""
    emr: Emr | None = None
    """What EMR needs; None where it is not used."""
    emr_serverless: EmrServerless | None = None
    """What EMR Serverless needs; None where it is not used."""
    queue: QueueSettings | None = None
    """The queue that asks for partitions as data arrives; None where LAKEHOUSE_QUEUE is not set."""
    unshared: str | None = None
    """LAKEHOUSE_UNSHARED, a prefix below which no table needs a file in another table's folder; None: unknown."""


SPARK_PREFIX = "LAKEHOUSE_SPARK__"
NAMES = (
    *("HOME", "CACHE", "COMPUTE", "LANDING", "STAGING", "UNSHARED", "MAX_WORKERS", "CODE"),
    *("ECS_CLUSTER", "ECS_TASK_DEFINITION", "ECS_CONTAINER", "ECS_SUBNETS", "ECS_SECURITY_GROUPS", "ECS_PUBLIC_IP"),
    *("ECS_CAPACITY", "ECS_VCPUS", "ECS_MEMORY_GIB", "ECS_DISK_GIB"),
    *("EMR_CLUSTER", "EMR_SERVERLESS_APPLICATION", "EMR_SERVERLESS_ROLE"),
    *("QUEUE", "QUEUE_DEAD_LETTERS", "QUEUE_RUNS"),
    # The image, the workers and the tests read these by themselves.
    *("JAVA_HOME", "PARENT_PIPE", "CODE_SERVER_HOST", "REQUIRE_ALL", "TEST_IMAGE", "TEST_MODEL_TABLES", "TEST_ORDER"),
)
"""Every variable of this project, without the prefix LAKEHOUSE_."""


def read_home(env: Mapping[str, str] = os.environ) -> Path:
    """Reads LAKEHOUSE_HOME alone, for code that must work even where another setting is wrong."""
    return _absolute(env.get("LAKEHOUSE_HOME", "").strip() or ".lakehouse")


def read_settings(
    env: Mapping[str, str] = os.environ,
    also: Chosen = NOBODY,
    check: Callable[[Settings, Chosen], list[str]] = lambda settings, computes: [],
) -> Settings:
    """Reads the environment's variables. Blanks around values are dropped, except in Spark's settings.

    also: the computes that tables choose for themselves. check: finds further problems of the settings and of all
    computes in use (a code location passes resources.catalog_problems.catalog_problems).
    Raises SettingsError naming all problems at once.
    """
    spark = {name.removeprefix(SPARK_PREFIX): value for name, value in env.items() if name.startswith(SPARK_PREFIX)}
    env = {name: value.strip() for name, value in env.items()}
    home = read_home(env)
    problems: list[str] = []
    compute = _compute(env, problems)
    max_workers = _max_workers(env, problems)
    problems += _without_bucket(env)
    remote, remote_problems = _remote(compute, also, env)
    queue, queue_problems = read_queue(env)
    settings = Settings(
        home=home,
        cache=_absolute(env.get("LAKEHOUSE_CACHE") or f"{env.get('XDG_CACHE_HOME') or '~/.cache'}/lakehouse-assets"),
        compute=compute,
        landing=_prefix(env.get("LAKEHOUSE_LANDING") or str(home / "landing")),
        staging=_prefix(env.get("LAKEHOUSE_STAGING") or home.joinpath("staging").as_uri()),
        max_workers=max_workers,
        spark_conf={name.replace("__", "."): value for name, value in spark.items()},
        queue=queue,
        unshared=_prefix(env["LAKEHOUSE_UNSHARED"]) if env.get("LAKEHOUSE_UNSHARED") else None,
        **remote,
    )
    problems += remote_problems + queue_problems + check(settings, {compute: (), **also})
    if problems:
        raise SettingsError("\n".join(["the settings can't work:", *problems] if len(problems) > 1 else problems))
    return settings


def chosen_by(compute: Compute, also: Chosen) -> str:
    """Names the tables that chose the compute, for a message: the first one and the number of the others."""
    first, *more = also[compute]
    return f"table {first!r} and {len(more)} more" if more else f"table {first!r}"


def unknown_names(env: Mapping[str, str]) -> list[str]:
    """Returns a problem for each LAKEHOUSE_ variable that does not exist, with the most similar one.

    It is for code locations only: a worker's environment may have variables that are meant for others.
    """
    names = [name.removeprefix("LAKEHOUSE_") for name in sorted(env) if name.startswith("LAKEHOUSE_")]
    unknown = [name for name in names if name not in NAMES and not f"LAKEHOUSE_{name}".startswith(SPARK_PREFIX)]
    nearest = {name: get_close_matches(name.upper(), NAMES, 1, cutoff=0)[0] for name in unknown}
    return [f"LAKEHOUSE_{name} is unknown; did you mean LAKEHOUSE_{near}?" for name, near in nearest.items()]


def _absolute(path: str) -> Path:
    return Path(path).expanduser().absolute()


def _prefix(place: str) -> str:
    """Leaves a URL as it is, and makes a path absolute: workers and servers have other working directories."""
    return place.rstrip("/") if re.match(r"\w[\w+.-]*:/", place) else str(_absolute(place))


def _compute(env: Mapping[str, str], problems: list[str]) -> Compute:
    value = env.get("LAKEHOUSE_COMPUTE") or Compute.LOCAL
    try:
        return Compute(value.lower())
    except ValueError:
        problems.append(f"LAKEHOUSE_COMPUTE={shown(value)!r} is unknown; known are {', '.join(Compute)}")
        return Compute.LOCAL


def _max_workers(env: Mapping[str, str], problems: list[str]) -> int:
    value = env.get("LAKEHOUSE_MAX_WORKERS")
    if value and value.isdecimal() and 1 <= int(value) <= 1000:
        return int(value)
    if value:
        problems.append(f"LAKEHOUSE_MAX_WORKERS={shown(value)!r} is not a whole number from 1 to 1000")
    return max(1, cores() // 2)


def _without_bucket(env: Mapping[str, str]) -> list[str]:
    """Returns a problem for each place on S3 that names no bucket, wherever workers run."""
    return [
        f"{name}={shown(env[name])!r} names no bucket; it must be of the form s3://bucket/prefix"
        for name in ("LAKEHOUSE_LANDING", "LAKEHOUSE_STAGING", "LAKEHOUSE_UNSHARED")
        if re.match("s3[an]?:", env.get(name, "")) and not re.fullmatch(f"s3[an]?{BUCKET}", env[name])
    ]


def _remote(compute: Compute, also: Chosen, env: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Reads the settings of the services in use, by the field's name; and what is wrong with them."""
    readers = {Compute.ECS: read_ecs, Compute.EMR: read_emr, Compute.EMR_SERVERLESS: read_emr_serverless}
    # Messages name the table where the variable LAKEHOUSE_COMPUTE doesn't name the compute.
    needed_by = {remote: f"{remote}, chosen by {chosen_by(remote, also)}," for remote in readers if remote in also}
    if compute in readers:
        needed_by[compute] = f"LAKEHOUSE_COMPUTE={compute}"
    if not needed_by:
        return {}, []
    reader, found = EnvReader(env), {}
    for remote, read in readers.items():
        if remote in needed_by:
            reader.needed_by = needed_by[remote]
            found[remote.value] = read(reader)
    reader.needed_by = needed_by.get(compute) or next(iter(needed_by.values()))
    staging = reader.text("LAKEHOUSE_STAGING", example="s3://bucket/staging")
    if staging and not staging.startswith("s3:"):
        reader.problems += [f"LAKEHOUSE_STAGING={shown(staging)} is not an s3:// prefix ({reader.needed_by} needs one)"]
    return found, list(dict.fromkeys(reader.problems))
