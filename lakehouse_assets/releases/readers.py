"""Finds a release for its readers, and gives them each of its tables at its snapshot.

Nothing is written here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from lakehouse_assets.environment.catalog import find_table, load_lake, why_gone, with_retries
from lakehouse_assets.environment.catalog_in_spark import LAKE
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.errors import NoSuchRelease
from lakehouse_assets.releases.pointer import KeptRelease, Member, Pointer, load_pointer, pointer_identifier

if TYPE_CHECKING:
    import polars as pl
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import DataScan
    from pyiceberg.table import Table as IcebergTable
    from pyspark.sql import DataFrame, SparkSession  # noqa: TID251  types only


@dataclass(frozen=True)
class Released:
    """One release as a reader gets it: its tables, each at its released snapshot, whatever is committed meanwhile."""

    name: str
    """The domain's."""
    number: int
    released_at: datetime
    members: Mapping[str, Member]
    """Its tables, by identifier."""
    catalog: Catalog = field(repr=False)
    pointer: Pointer = field(repr=False)
    """What the pointer said when it was loaded."""

    @property
    def previous(self) -> Released:
        """The release before this one, from the same load of the pointer. Raises NoSuchRelease where none is kept."""
        found = [one for one in self.pointer.releases if one.number < self.number]
        if not found:
            raise NoSuchRelease(
                f"release {self.number} of {self.name} is the oldest that is kept: there is none before"
            )
        return _released(self.name, found[-1], self.catalog, self.pointer)

    def load(self, table: str) -> IcebergTable:
        """Loads a table as it is now, which has the released snapshot among others.

        table: its identifier. Raises NoSuchRelease where the release has no such table, or can't be read any more.
        """
        if (member := self.members.get(table)) is None:
            known = ", ".join(sorted(self.members))
            raise NoSuchRelease(f"release {self.number} of {self.name} has no table {table}; it has {known}")
        found = with_retries(lambda: find_table(self.catalog, table))
        why = why_gone(found.metadata if found else None, member.uuid, member.snapshot_id)
        if found is None or why:
            raise NoSuchRelease(
                f"table {table}: release {self.number} of {self.name} can't be read: the table {why}. Read a later "
                f"release, or materialize {self.name}/release to make one"
            )
        return found

    def scan(self, table: str, **options: Any) -> DataScan:
        """Returns PyIceberg's scan of a table, which itself gives Arrow, pandas and DuckDB.

        table: its identifier. options: those of ``pyiceberg.table.Table.scan``. Raises as load().
        """
        return self.load(table).scan(snapshot_id=self.members[table].snapshot_id, **options)

    def polars(self, table: str) -> pl.LazyFrame:
        """Returns a table as a lazy frame of Polars. table: its identifier. Raises as load()."""
        import polars as pl

        return pl.scan_iceberg(self.load(table), snapshot_id=self.members[table].snapshot_id)

    def spark(self, session: SparkSession, table: str) -> DataFrame:
        """Returns a table as a frame of Spark.

        session: one that has the same catalog, under the name ``lake``. table: its identifier. Raises as load().
        """
        self.load(table)
        return session.read.option("versionAsOf", self.members[table].snapshot_id).table(f"{LAKE}.{table}")


def release(
    name: str, *, at: datetime | None = None, number: int | None = None, catalog: Catalog | None = None
) -> Released:
    """Returns the newest release of a domain, or an earlier one that is kept; its pointer is loaded once.

    name: of the domain. at: for the release that was the newest then; UTC where it has no zone. number: of a release.
    catalog: where it is; None for the lake of this environment. Raises NoSuchRelease, CatalogUnavailable, TypeError for
    an at that is no datetime, and as load_pointer().

    Example:
        >>> from pyiceberg.catalog import load_catalog
        >>> from lakehouse_assets import release
        >>> release("shop", catalog=load_catalog("lake", type="in-memory"))
        Traceback (most recent call last):
        lakehouse_assets.errors.NoSuchRelease: shop has no releases (table shop.releases): materialize shop/release
    """
    if at is not None:
        if not isinstance(at, datetime):
            raise TypeError(f"at is {at!r}, expected a datetime: of a day, nobody knows which release of it is meant")
        at = at.replace(tzinfo=at.tzinfo or UTC)
    opened = catalog or with_retries(lambda: load_lake(read_settings()))
    pointer = with_retries(lambda: load_pointer(opened, name))
    if pointer is None or not pointer.releases:
        raise NoSuchRelease(f"{name} has no releases (table {pointer_identifier(name)}): materialize {name}/release")
    fits = [
        one
        for one in pointer.releases
        if (number is None or one.number == number) and (at is None or one.released_at <= at)
    ]
    if not fits:
        asked = " ".join(filter(None, (f"number {number}" if number is not None else "", f"at {at}" if at else "")))
        kept = [f"{one.number} of {one.released_at:%Y-%m-%d %H:%M:%S} UTC" for one in pointer.releases]
        shown = kept[0] if len(kept) == 1 else f"{kept[0]} to {kept[-1]}"
        raise NoSuchRelease(f"{name} has no release {asked}; kept are {shown}")
    return _released(name, fits[-1], opened, pointer)


def _released(name: str, found: KeptRelease, catalog: Catalog, pointer: Pointer) -> Released:
    members = {member.table: member for member in found.members}
    return Released(name, found.number, found.released_at, members, catalog, pointer)
