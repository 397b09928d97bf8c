"""Looks at tables' health, with a cursor that saves further looks; losing it costs one look at each table."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

import dagster as dg
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, ValidationError
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table as IcebergTable

from lakehouse_assets.commit.expire import ExpiryPolicy, plan_expiry
from lakehouse_assets.commit.manifests import current_manifests, has_live_files, read_manifests
from lakehouse_assets.declare.table import Table
from lakehouse_assets.errors import MaintenanceRefused, UnreadableMetadata
from lakehouse_assets.maintenance.collect.report import LOOK, LastLook, notes
from lakehouse_assets.maintenance.health.health import TableHealth, size_limits, table_health
from lakehouse_assets.maintenance.health.partition_health import KeyOf, keys_of
from lakehouse_assets.maintenance.health.summaries import LiveFile, SummaryCache, line, summaries_in, summarize
from lakehouse_assets.run.jobs import SensorCursor
from lakehouse_assets.run.resource import Lakehouse


class TimeIsUp(Exception):
    """Not all manifests were read by the deadline. The next look continues there."""


def look(
    table: IcebergTable, cache: SummaryCache, key_of: KeyOf = lambda _: None, deadline: float | None = None
) -> TableHealth:
    """Returns the health of a loaded table, without opening data files. deadline: on the monotonic clock.

    Raises TimeIsUp at the deadline, UnreadableMetadata for a torn manifest or manifest list, OSError if the storage
    can't be read.
    """
    from lakehouse_assets.maintenance.health.needs_spark import reasons_of_table  # imports PyArrow

    metadata, limits = table.metadata, size_limits(table.metadata)
    manifests = current_manifests(table)
    kept = cache.read(metadata.table_uuid, limits)
    live = {_key(manifest): manifest for manifest in manifests if has_live_files(manifest)}
    lines = {key: text for key, text in kept.items() if key in live}  # the cache forgets all other manifests
    new = [manifest for key, manifest in live.items() if key not in lines]
    try:
        for at, (manifest, entries) in enumerate(read_manifests(table.io, new), start=1):
            found = summarize(manifest.partition_spec_id, map(LiveFile.of, entries), limits)
            lines[_key(manifest)] = line(manifest, found)
            if deadline is not None and at < len(new) and time.monotonic() > deadline:
                raise TimeIsUp(f"the time limit ended when {at} of {len(new)} new manifests were read")
    finally:
        # Even if the time is up or a manifest is torn: the next look continues from here.
        if lines.keys() != kept.keys():
            cache.write(metadata.table_uuid, limits, lines.values())
    identifier = ".".join(table.name())
    health = table_health(
        identifier,
        metadata,
        len(table.io.new_input(table.metadata_location)),
        manifests,
        chain.from_iterable(map(summaries_in, lines.values())),
        key_of,
        reasons_of_table(metadata),
    )
    try:
        plan = plan_expiry(identifier, metadata, ExpiryPolicy(), int(time.time() * 1000))
    except MaintenanceRefused:  # the level ``expire`` says why
        return health
    return replace(health, expirable=len(plan.expiry.snapshot_ids), more_expirable_ms=plan.changes_ms)


def _key(manifest: ManifestFile) -> tuple[str, int]:
    return manifest.manifest_path, manifest.manifest_length


def summary_cache(lakehouse: Lakehouse) -> SummaryCache:
    """Returns the cache, in a folder beside those of tables. No table is named ``health``: identifiers have a dot."""
    return SummaryCache(lakehouse.staging_io(), f"{lakehouse.settings.staging}/health")


@dataclass(frozen=True)
class HealthReader:
    """Reads tables from a catalog, and their health."""

    catalog: Catalog
    cache: SummaryCache
    instance: dg.DagsterInstance
    staging: str

    @classmethod
    def of(cls, lakehouse: Lakehouse, catalog: Catalog, instance: dg.DagsterInstance) -> HealthReader:
        """Uses the lakehouse's cache."""
        return cls(catalog, summary_cache(lakehouse), instance, lakehouse.settings.staging)

    def load(self, table: Table) -> IcebergTable | None:
        """Loads the current table, if it exists.

        Raises UnreadableMetadata for a torn or foreign metadata.json, and catalog errors.
        """
        try:
            return self.catalog.load_table(table.identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except (ValidationError, ValueError) as error:
            # A validation error lists all problems: its first two lines name the model and a field.
            reason = " ".join(str(error).split("\n")[:2])
            raise UnreadableMetadata(
                f"table {table.identifier}: the metadata.json to which the catalog points is torn or foreign: "
                f"{reason}. Restore it, or register the table with an earlier one"
            ) from error

    def health(self, table: Table, loaded: IcebergTable, deadline: float | None = None) -> TableHealth:
        """Returns the table's health. Raises as look()."""
        health = look(loaded, self.cache, keys_of(table, loaded.metadata, self.instance), deadline)
        return replace(health, collected=LastLook.read(self.cache.io, notes(self.staging, health.uuid, LOOK)))


HOUR = 3600.0
"""Seconds between looks at a table without a new materialization: other engines write without leaving one. If each of
the two sensors loaded 500 idle tables every five minutes, that would make 8.6 million loads a month."""


class Seen(NamedTuple):
    """How a table was found at the last look."""

    location: str
    """A hash of its metadata's location; empty if something is left to do even if the table stays as it is."""
    event: int
    """Its latest materialization's id, or 0."""
    again: float
    """Epoch seconds of the next look, unless there is a new materialization."""
    changes: float | None = None
    """Epoch seconds from which it may need work although it was not written."""


@dataclass
class LookCursor(SensorCursor):
    """Where the sensor continues, and what it saw."""

    last: str = ""
    """The identifier of the table at which it looked last."""
    seen: dict[str, Seen] = field(default_factory=dict)

    def due(self, tables: Iterable[Table], events: Mapping[str, int], now: float) -> list[Table]:
        """Returns the tables to look at, starting after the last one, so that each has its turn. now: epoch seconds."""
        found = [table for table in tables if self._is_due(table.identifier, events.get(table.identifier, 0), now)]
        # False sorts before True: first the tables after the last one.
        return sorted(found, key=lambda table: (table.identifier <= self.last, table.identifier))

    def waiting(self, tables: Iterable[Table], due: Collection[Table]) -> list[Table]:
        """Returns the tables with something left to do (Seen.location) that are not due."""
        return [
            table
            for table in tables
            if table not in due and (seen := self.seen.get(table.identifier)) and not seen.location
        ]

    def _is_due(self, identifier: str, event: int, now: float) -> bool:
        seen = self.seen.get(identifier)
        return seen is None or seen.event != event or now >= seen.again

    def forget_others(self, identifiers: Collection[str]) -> None:
        """Drops all tables but these."""
        self.seen = {name: seen for name, seen in self.seen.items() if name in identifiers}


def materializations(instance: dg.DagsterInstance, tables: Sequence[Table]) -> dict[str, int]:
    """Returns the storage id of each table's latest materialization, or 0.

    One query: 0.16 s of CPU for 500 tables. Call it before loading a table, so that the next tick sees what is
    published in between.
    """
    latest = instance.event_log_storage.get_latest_materialization_storage_ids([table.key for table in tables])
    return {table.identifier: latest.get(table.key) or 0 for table in tables}


def short(text: str) -> str:
    """Returns 8 hex digits of a hash."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]
