"""A site whose clock can be set forward and whose runs are given: what a test of the collector needs besides a catalog.
Catalogs, tables, files and the trash are real."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

from lakehouse_assets.errors import StorageRefused
from lakehouse_assets.maintenance.collect.collect import collect
from lakehouse_assets.maintenance.collect.listing import Listed
from lakehouse_assets.maintenance.collect.needed import Chain, Periods
from lakehouse_assets.maintenance.collect.neighbours import Neighbours
from lakehouse_assets.maintenance.collect.report import Report
from lakehouse_assets.maintenance.collect.seen import Site
from lakehouse_assets.storage.place import Place

DAY_MS = 24 * 3600 * 1000
DEFAULTS = Periods()
AT_ONCE = Periods(grace=timedelta(0), unnamed=timedelta(0))
"""For storage in which no file can be made to look old."""


@dataclass
class TestSite(Site):
    """days: how far its clock is ahead. runs: what Dagster knows, by token. cut: whether listings of tables break in
    the middle. listed: called when a table was listed."""

    __test__ = False
    chains: object = None  # type: ignore[assignment]
    days: float = 0
    runs: dict[str, Chain] = field(default_factory=dict)
    cut: bool = False
    listed: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.chains = self._chains

    def _chains(self, tokens: Collection[str]) -> Mapping[str, Chain]:
        return {token: self.runs[token] for token in tokens if token in self.runs}

    def now_ms(self) -> int:
        return super().now_ms() + round(self.days * DAY_MS)

    def list_table(self, table: Table, root: Place) -> Iterator[Listed]:
        files = list(super().list_table(table, root))
        yield from files[: len(files) // 2] if self.cut else files
        if self.cut:
            raise StorageRefused(f"table at {root.location}: 503 Slow Down")
        self.listed()

    def pass_over(
        self, identifier: str, *, dry_run: bool = False, allow_large: bool = True, periods: Periods = DEFAULTS
    ) -> Report:
        self.neighbours = Neighbours(self.catalog)  # each pass is a run of its own
        return collect(self, identifier, "run-1", dry_run=dry_run, allow_large=allow_large, periods=periods)


def local_site(folder: Path) -> TestSite:
    """A SQLite catalog, a warehouse and a staging prefix in a folder."""
    (folder / "warehouse").mkdir(parents=True, exist_ok=True)
    catalog = local_catalog(folder)
    catalog.create_namespace_if_not_exists("nyc")
    return TestSite(catalog, (folder / "staging").as_uri())


def local_catalog(folder: Path) -> Catalog:
    return load_catalog(
        "lake", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=(folder / "warehouse").as_uri()
    )


def put(path: Path, content: bytes = b"x" * 100, *, days_old: float = 60) -> Path:
    """A file that somebody left some days ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return aged(path, days_old)


def aged(path: Path, days: float) -> Path:
    """The file, as if it had been written so many days ago."""
    at = time.time() - days * 24 * 3600
    os.utime(path, (at, at))
    return path
