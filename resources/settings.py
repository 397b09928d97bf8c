"""The environment, read and validated once into one frozen object.
No clients, no files written, no defaults elsewhere: every other module takes a Settings."""

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

from resources.machine import cores
from resources.remote import BUCKET, Ecs, Emr, EmrServerless, Reader, read_ecs, read_emr, read_emr_serverless
from resources.secrets import shown


class SettingsError(ValueError):
    """The environment can't work; the message lists every problem with its variable's name."""


class Compute(StrEnum):
    """Where workers run (LAKEHOUSE_COMPUTE)."""

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
    """One code location's settings.

    home: LAKEHOUSE_HOME, absolute. Embedded catalog, warehouse, Dagster's state, landing and reports live here.
    cache: LAKEHOUSE_CACHE, absolute. Jars and the class-data archive; shared by homes, safe to delete.
    compute: LAKEHOUSE_COMPUTE.
    landing: LAKEHOUSE_LANDING, the drop zone's prefix: a path or a URL; default ``<home>/landing``.
    staging: LAKEHOUSE_STAGING, the prefix receipts are kept under: a path or a URL; default ``<home>/staging``.
    max_workers: LAKEHOUSE_MAX_WORKERS, the limit of the pool ``lake_workers``; default 1 for each 2 cores, at least 1.
    ecs, emr, emr_serverless: what those computes need, where one of them is used; see resources/remote.py.
    spark_conf: every ``LAKEHOUSE_SPARK__a__b=v`` as Spark setting ``a.b`` (two underscores for a dot, case kept).
    """

    home: Path
    cache: Path
    compute: Compute
    landing: str
    staging: str
    max_workers: int
    spark_conf: Mapping[str, str] = field(repr=False)  # may hold secrets
    ecs: Ecs | None = None
    emr: Emr | None = None
    emr_serverless: EmrServerless | None = None

    @property
    def warehouse(self) -> str:
        """The embedded warehouse's URL."""
        return self.home.joinpath("warehouse").as_uri()


def _prefix(place: str) -> str:
    """A URL as it is, a path absolute: workers and servers have working directories of their own."""
    return place.rstrip("/") if re.match(r"\w[\w+.-]*:/", place) else str(Path(place).expanduser().absolute())


SPARK_PREFIX = "LAKEHOUSE_SPARK__"
# Every variable of ours, also those that the image, the workers and the tests read by themselves.
NAMES = [
    "HOME",
    "CACHE",
    "COMPUTE",
    "LANDING",
    "STAGING",
    "CODE",
    "MAX_WORKERS",
    "JAVA_HOME",
    "PARENT_PIPE",
    "CODE_SERVER_HOST",
    "REQUIRE_ALL",
    "TEST_IMAGE",
    "TEST_ORDER",
    "EMR_CLUSTER",
    "EMR_SERVERLESS_APPLICATION",
    "EMR_SERVERLESS_ROLE",
    "ECS_CLUSTER",
    "ECS_TASK_DEFINITION",
    "ECS_CONTAINER",
    "ECS_SUBNETS",
    "ECS_SECURITY_GROUPS",
    "ECS_PUBLIC_IP",
    "ECS_CAPACITY",
    "ECS_VCPUS",
    "ECS_MEMORY_GIB",
    "ECS_DISK_GIB",
]


def read_home(env: Mapping[str, str] = os.environ) -> Path:
    """LAKEHOUSE_HOME alone, absolute: for who must not fail where something else is wrong."""
    return Path(env.get("LAKEHOUSE_HOME", "").strip() or ".lakehouse").expanduser().absolute()


def read_settings(
    env: Mapping[str, str] = os.environ,
    also: Chosen = NOBODY,
    check: Callable[[Settings, Chosen], list[str]] = lambda settings, computes: [],
) -> Settings:
    """Settings from the environment's variables, without the blanks around their values. Raises SettingsError naming
    all problems at once.

    also: what tables choose for themselves, beside LAKEHOUSE_COMPUTE's. check: further problems, of the settings and
    all computes (a code location gives resources.catalog_problems').
    """
    problems: list[str] = []
    given, env = env, {name: value.strip() for name, value in env.items()}
    home = read_home(env)
    cache_root = env.get("XDG_CACHE_HOME") or "~/.cache"
    cache = Path(env.get("LAKEHOUSE_CACHE") or f"{cache_root}/lakehouse-assets").expanduser().absolute()
    compute = Compute.LOCAL
    try:
        compute = Compute(env.get("LAKEHOUSE_COMPUTE", "").lower() or "local")
    except ValueError:
        problems.append(
            f"LAKEHOUSE_COMPUTE={shown(env['LAKEHOUSE_COMPUTE'])!r} is unknown; known are {', '.join(Compute)}"
        )
    max_workers = max(1, cores() // 2)
    if text := env.get("LAKEHOUSE_MAX_WORKERS"):
        if text.isdecimal() and 1 <= int(text) <= 1000:
            max_workers = int(text)
        else:
            problems.append(f"LAKEHOUSE_MAX_WORKERS={shown(text)!r} is no whole number from 1 to 1000")
    problems += _no_buckets(env)
    remote, told = _remote(compute, also, env)
    problems += told
    settings = Settings(
        home=home,
        cache=cache,
        compute=compute,
        landing=_prefix(env.get("LAKEHOUSE_LANDING") or str(home / "landing")),
        staging=_prefix(env.get("LAKEHOUSE_STAGING") or home.joinpath("staging").as_uri()),
        max_workers=max_workers,
        spark_conf={
            name.removeprefix(SPARK_PREFIX).replace("__", "."): value
            for name, value in given.items()
            if name.startswith(SPARK_PREFIX)
        },
        **remote,
    )
    problems += check(settings, {compute: (), **also})
    if problems:
        raise SettingsError("\n".join(["the settings can't work:", *problems] if len(problems) > 1 else problems))
    return settings


def chosen_by(compute: Compute, also: Chosen) -> str:
    """The first of the tables that chose it, and how many more did."""
    first, *more = also[compute]
    return f"table {first!r} and {len(more)} more" if more else f"table {first!r}"


def unknown_names(env: Mapping[str, str]) -> list[str]:
    """The variables that look like ours and are none, each with the nearest that is.

    For a code location: a worker gets along with what is meant for others.
    """
    ours = (name for name in sorted(env) if name.startswith("LAKEHOUSE_") and not name.startswith(SPARK_PREFIX))
    strange = [name.removeprefix("LAKEHOUSE_") for name in ours if name.removeprefix("LAKEHOUSE_") not in NAMES]
    nearest = {name: get_close_matches(name.upper(), NAMES, 1, cutoff=0)[0] for name in strange}
    return [f"LAKEHOUSE_{name} is unknown; did you mean LAKEHOUSE_{near}?" for name, near in nearest.items()]


def _no_buckets(env: Mapping[str, str]) -> list[str]:
    """What is wrong with the places on S3, wherever workers run."""
    return [
        f"{name}={shown(env[name])!r} names no bucket; it goes s3://bucket/prefix"
        for name in ("LAKEHOUSE_LANDING", "LAKEHOUSE_STAGING")
        if re.match("s3[an]?:", env.get(name, "")) and not re.fullmatch(f"s3[an]?{BUCKET}", env[name])
    ]


def _remote(compute: Compute, also: Chosen, env: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """The settings of the remote computes that are used, and what is wrong with them."""
    readers = {Compute.ECS: read_ecs, Compute.EMR: read_emr, Compute.EMR_SERVERLESS: read_emr_serverless}
    used = [remote for remote in readers if remote in (compute, *also)]
    reader, found = Reader(env), {}
    # A compute that nobody finds in the environment is a table's.
    because = {remote: f"{remote}, chosen by {chosen_by(remote, also)}," for remote in used if remote != compute}
    if compute in used:
        because[compute] = f"LAKEHOUSE_COMPUTE={compute}"
    for remote in used:
        reader.because = because[remote]
        found[remote.value] = readers[remote](reader)
    reader.because = because.get(compute) or next(iter(because.values()), "")
    staging = reader.text("LAKEHOUSE_STAGING", example="s3://bucket/staging") if used else ""
    if staging and not staging.startswith("s3:"):
        told = shown(staging)
        reader.problems.append(f"LAKEHOUSE_STAGING={told} is no s3:// prefix ({reader.because} needs one)")
    return found, list(dict.fromkeys(reader.problems))
