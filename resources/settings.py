"""The environment, read and validated once into one frozen object.
No clients, no files written, no defaults elsewhere: every other module takes a Settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from resources.machine import cores


class SettingsError(ValueError):
    """The environment can't work; the message lists every problem with its variable's name."""


class Compute(StrEnum):
    """Where workers run (LAKEHOUSE_COMPUTE)."""

    INLINE = "inline"
    LOCAL = "local"


@dataclass(frozen=True)
class Settings:
    """One code location's settings.

    home: LAKEHOUSE_HOME, absolute. Embedded catalog, warehouse, Dagster's state, landing and reports live here.
    cache: LAKEHOUSE_CACHE, absolute. Jars and the class-data archive; shared by homes, safe to delete.
    compute: LAKEHOUSE_COMPUTE.
    landing: LAKEHOUSE_LANDING, the drop zone's prefix: a path or a URL; default ``<home>/landing``.
    staging: LAKEHOUSE_STAGING, the prefix receipts are kept under: a URL; default ``<home>/staging``.
    max_workers: LAKEHOUSE_MAX_WORKERS, the limit of the pool ``lake_workers``; default 1 for each 2 cores, at least 1.
    spark_conf: every ``LAKEHOUSE_SPARK__a__b=v`` as Spark setting ``a.b`` (two underscores for a dot, case kept).
    """

    home: Path
    cache: Path
    compute: Compute
    landing: str
    staging: str
    max_workers: int
    spark_conf: Mapping[str, str]

    @property
    def warehouse(self) -> str:
        """The embedded warehouse's URL."""
        return self.home.joinpath("warehouse").as_uri()


def _prefix(place: str) -> str:
    """A URL as it is, a path absolute: workers and servers have working directories of their own."""
    return place.rstrip("/") if "://" in place else str(Path(place).expanduser().absolute())


SPARK_PREFIX = "LAKEHOUSE_SPARK__"


def read_settings(env: Mapping[str, str] = os.environ) -> Settings:
    """Settings from the environment's variables. Raises SettingsError naming all problems at once."""
    problems: list[str] = []
    home = Path(env.get("LAKEHOUSE_HOME") or ".lakehouse").expanduser().absolute()
    cache_root = env.get("XDG_CACHE_HOME") or "~/.cache"
    cache = Path(env.get("LAKEHOUSE_CACHE") or f"{cache_root}/lakehouse-assets").expanduser().absolute()
    compute = Compute.LOCAL
    try:
        compute = Compute(env.get("LAKEHOUSE_COMPUTE") or "local")
    except ValueError:
        problems.append(f"LAKEHOUSE_COMPUTE={env['LAKEHOUSE_COMPUTE']!r} is unknown; known are {', '.join(Compute)}")
    max_workers = max(1, cores() // 2)
    if text := env.get("LAKEHOUSE_MAX_WORKERS"):
        if text.isdecimal() and 1 <= int(text) <= 1000:
            max_workers = int(text)
        else:
            problems.append(f"LAKEHOUSE_MAX_WORKERS={text!r} is no whole number from 1 to 1000")
    if problems:
        raise SettingsError("; ".join(problems))
    return Settings(
        home=home,
        cache=cache,
        compute=compute,
        landing=_prefix(env.get("LAKEHOUSE_LANDING") or str(home / "landing")),
        staging=(env.get("LAKEHOUSE_STAGING") or home.joinpath("staging").as_uri()).rstrip("/"),
        max_workers=max_workers,
        spark_conf={
            name.removeprefix(SPARK_PREFIX).replace("__", "."): value
            for name, value in env.items()
            if name.startswith(SPARK_PREFIX)
        },
    )
