"""The pointer of a domain's releases, and how readers follow it.

It is an Iceberg table with a row for each table of each kept release.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from lakehouse_assets.environment.catalog import find_table, load_lake, why_gone, with_retries
from lakehouse_assets.environment.catalog_in_spark import LAKE
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.errors import ForeignVersion, NoSuchRelease, ReleaseRefused

if TYPE_CHECKING:
    import polars as pl
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import DataScan
    from pyiceberg.table import Table as IcebergTable
    from pyspark.sql import DataFrame, SparkSession  # noqa: TID251  types only

POINTER = "releases"
MOST = 1000
"""The most kept releases: each reader reads all of them."""
MARK = "lakehouse.pointer-of"
"""The property that tells a pointer from another table of its name."""
SCHEMA = Schema(
    NestedField(1, "release", LongType(), required=True, doc="The release's number: 1, 2, 3, …"),
    NestedField(2, "released_at", TimestamptzType(), required=True, doc="When it was released"),
    NestedField(3, "run_id", StringType(), required=True, doc="The Dagster run that released it"),
    NestedField(4, "table", StringType(), required=True, doc="A member's identifier"),
    NestedField(5, "table_uuid", StringType(), required=True, doc="The member's UUID: another one was created again"),
    NestedField(6, "snapshot_id", LongType(), required=True, doc="The snapshot that readers get"),
    NestedField(7, "committed_at", TimestamptzType(), required=True, doc="When the snapshot was committed"),
    NestedField(8, "rows", LongType(), required=False, doc="The rows of the snapshot, where they were counted"),
)
PROPERTIES = {
    # The pointer's own history is not needed: its rows have all kept releases.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


@dataclass(frozen=True)
class Member:
    """One table of a release."""

    table: str
    uuid: str
    """The table's, as another one may get its name later."""
    snapshot_id: int
    committed_at: datetime
    rows: int | None
    """None if they could not be counted exactly, as with too many delete files."""


@dataclass(frozen=True)
class KeptRelease:
    """One release that the pointer names."""

    number: int
    released_at: datetime
    run_id: str
    members: tuple[Member, ...]

    @property
    def version(self) -> str:
        """Equal for releases of the same snapshots."""
        text = "\n".join(sorted(f"{one.table} {one.uuid} {one.snapshot_id}" for one in self.members))
        return sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Pointer:
    """The pointer when it was loaded."""

    table: IcebergTable
    releases: tuple[KeptRelease, ...]
    """Oldest first."""

    @classmethod
    def read(cls, table: IcebergTable) -> Pointer:
        """Reads a pointer's rows. Raises ForeignVersion if columns are missing, and its storage's errors."""
        found = [column.name for column in table.schema().columns]
        if missing := [column.name for column in SCHEMA.columns if column.name not in found]:
            raise ForeignVersion(
                f"table {'.'.join(table.name())}: the pointer of releases has no column {', '.join(missing)}, it has "
                f"{', '.join(found)}: it was changed. Rename its columns back; if one was dropped, drop the table and "
                "release again"
            )
        return cls(table, _from_rows(table.scan().to_arrow().to_pylist()))

    @property
    def newest(self) -> KeptRelease | None:
        """The release that readers get."""
        return self.releases[-1] if self.releases else None

    def of_run(self, run_id: str) -> KeptRelease | None:
        """Returns the kept release of a Dagster run."""
        return next((one for one in self.releases if one.run_id == run_id), None)

    def before(self, release: KeptRelease) -> KeptRelease | None:
        """Returns the kept release before another one."""
        return next((one for one in reversed(self.releases) if one.number < release.number), None)

    def move(self, releases: Sequence[KeptRelease]) -> None:
        """Replaces all rows in one commit, without retries. Raises CommitFailedException if the pointer has moved."""
        from lakehouse_assets.commit.snapshot import LeanTransaction
        from lakehouse_assets.commit.tokens import RUN_ID

        # PyIceberg's own transaction would retry after a conflict, and overwrite a release that it has not seen.
        transaction = LeanTransaction(self.table)
        transaction.overwrite(_to_arrow(releases), snapshot_properties={RUN_ID: releases[-1].run_id})
        transaction.commit_transaction()


def pointer_identifier(name: str) -> str:
    """Returns the identifier of a domain's pointer."""
    return f"{name}.{POINTER}"


def load_pointer(catalog: Catalog, name: str) -> Pointer | None:
    """Loads a domain's pointer; None if there is none, or a table without MARK. Raises as Pointer.read()."""
    table = find_table(catalog, pointer_identifier(name))
    return Pointer.read(table) if table and MARK in table.properties else None


def open_pointer(catalog: Catalog, name: str) -> Pointer:
    """Loads or creates a pointer. Raises ReleaseRefused if another table has its name, and as Pointer.read()."""
    if (found := load_pointer(catalog, name)) is not None:
        return found
    identifier = pointer_identifier(name)
    catalog.create_namespace_if_not_exists(name)
    table = catalog.create_table_if_not_exists(identifier, SCHEMA, properties={**PROPERTIES, MARK: name})
    if MARK not in table.properties:
        raise ReleaseRefused(
            f"table {identifier}: releases of {name} need a table of this name with the property {MARK}; the existing "
            "table lacks this property, so it is not a pointer of releases. Rename it. Nothing was released"
        )
    return Pointer.read(table)


def released_snapshots(catalog: Catalog, table: str, namespaces: Iterable[str]) -> set[int]:
    """Returns the snapshots that kept releases name, even if their tags are gone.

    namespaces: the domains, as any may have released the table. Raises as Pointer.read().
    """
    pointers = (load_pointer(catalog, name) for name in namespaces)
    kept = (release for pointer in pointers if pointer for release in pointer.releases)
    return {member.snapshot_id for release in kept for member in release.members if member.table == table}


def _to_arrow(releases: Sequence[KeptRelease]) -> Any:
    import pyarrow as pa

    rows = [
        {
            "release": release.number,
            "released_at": release.released_at,
            "run_id": release.run_id,
            "table": member.table,
            "table_uuid": member.uuid,
            "snapshot_id": member.snapshot_id,
            "committed_at": member.committed_at,
            "rows": member.rows,
        }
        for release in releases
        for member in release.members
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA.as_arrow())


def _from_rows(rows: list[dict[str, Any]]) -> tuple[KeptRelease, ...]:
    rows.sort(key=lambda row: (row["release"], row["table"]))
    return tuple(_release(number, [*of]) for number, of in groupby(rows, key=lambda row: int(row["release"])))


def _release(number: int, rows: Sequence[dict[str, Any]]) -> KeptRelease:
    members = tuple(
        Member(row["table"], row["table_uuid"], row["snapshot_id"], row["committed_at"], row["rows"]) for row in rows
    )
    return KeptRelease(number, rows[0]["released_at"], rows[0]["run_id"], members)


@dataclass(frozen=True)
class Released:
    """One release: each table at its released snapshot, whatever is committed meanwhile."""

    name: str
    """The domain's."""
    number: int
    released_at: datetime
    members: Mapping[str, Member]
    """By table identifier."""
    catalog: Catalog = field(repr=False)
    pointer: Pointer = field(repr=False)
    """For ``previous``."""

    @property
    def previous(self) -> Released:
        """The release before this one, without another load. Raises NoSuchRelease."""
        found = [one for one in self.pointer.releases if one.number < self.number]
        if not found:
            raise NoSuchRelease(f"release {self.number} of {self.name} is the oldest one kept: there is no earlier one")
        return _released(self.name, found[-1], self.catalog, self.pointer)

    def load(self, table: str) -> IcebergTable:
        """Returns a table with its current metadata, to be read at the snapshot that ``members`` names.

        Raises NoSuchRelease if the release lacks the table, or its snapshot is gone.
        """
        if (member := self.members.get(table)) is None:
            known = ", ".join(sorted(self.members))
            raise NoSuchRelease(f"release {self.number} of {self.name} has no table {table}; it has {known}")
        found = with_retries(lambda: find_table(self.catalog, table))
        why = why_gone(found.metadata if found else None, member.uuid, member.snapshot_id)
        if found is None or why:
            raise NoSuchRelease(
                f"table {table}: release {self.number} of {self.name} can't be read: the table {why}. Read a later "
                f"release, or materialize {self.name}/release to create one"
            )
        return found

    def scan(self, table: str, **options: Any) -> DataScan:
        """Returns PyIceberg's scan, for Arrow, pandas and DuckDB. Raises as load()."""
        return self.load(table).scan(snapshot_id=self.members[table].snapshot_id, **options)

    def polars(self, table: str) -> pl.LazyFrame:
        """Returns a lazy Polars frame. Raises as load()."""
        import polars as pl

        return pl.scan_iceberg(self.load(table), snapshot_id=self.members[table].snapshot_id)

    def spark(self, session: SparkSession, table: str) -> DataFrame:
        """Returns a frame of a session with the catalog ``lake``. Raises as load()."""
        self.load(table)
        return session.read.option("versionAsOf", self.members[table].snapshot_id).table(f"{LAKE}.{table}")


def release(
    name: str, *, at: datetime | None = None, number: int | None = None, catalog: Catalog | None = None
) -> Released:
    """Returns the newest release of a domain, or an earlier one that is kept; loads its pointer once.

    at: for the newest release at that time (default UTC). number: for that release. catalog: by default the
    environment's. Raises NoSuchRelease, CatalogUnavailable, TypeError if ``at`` is no datetime, and as load_pointer().

    Examples:
        >>> from pyiceberg.catalog import load_catalog
        >>> from lakehouse_assets import release
        >>> release("shop", catalog=load_catalog("lake", type="in-memory"))
        Traceback (most recent call last):
        lakehouse_assets.errors.NoSuchRelease: shop has no releases (table shop.releases): materialize shop/release
    """
    if at is not None:
        if not isinstance(at, datetime):
            raise TypeError(f"at is {at!r}, expected a datetime: a day may have several releases")
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
        raise NoSuchRelease(f"{name} has no release {asked}; the kept releases are {shown}")
    return _released(name, fits[-1], opened, pointer)


def _released(name: str, found: KeptRelease, catalog: Catalog, pointer: Pointer) -> Released:
    members = {member.table: member for member in found.members}
    return Released(name, found.number, found.released_at, members, catalog, pointer)
