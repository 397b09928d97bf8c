"""Rolls a table back, and corrects what Dagster shows of its partitions."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import dagster as dg
from dagster._core.definitions.data_version import DATA_VERSION_TAG
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, SetSnapshotRefUpdate

from lakehouse_assets.commit.positions import positions_of
from lakehouse_assets.commit.publish import commit_persistently
from lakehouse_assets.commit.tokens import SPANS, TOKEN, known_as_rolled_back
from lakehouse_assets.declare.row_source import Offsets
from lakehouse_assets.declare.table import Table
from lakehouse_assets.errors import MaintenanceContended, RollbackRefused
from lakehouse_assets.extensions.releases.pointer import release
from lakehouse_assets.keys_text import keys_text
from lakehouse_assets.run.outdated import BATCH, Partition, latest_made
from lakehouse_assets.time_text import parse_time, shown_time

RELEASE = "release:"
"""As in ``release:12``, a rollback target."""


@dataclass(frozen=True)
class Rollback:
    """A table, and the snapshot that its main branch is set to."""

    metadata: TableMetadata
    """The table before the rollback."""
    target: Snapshot

    @property
    def undone(self) -> list[Snapshot]:
        """The snapshots that leave main's history, newest first."""
        kept = {snapshot.snapshot_id for snapshot in ancestors_of(self.target, self.metadata)}
        before = ancestors_of(self.metadata.current_snapshot(), self.metadata)
        return [snapshot for snapshot in before if snapshot.snapshot_id not in kept]

    @property
    def restored(self) -> list[Snapshot]:
        """The snapshots that return to main's history, newest first."""
        before = {snapshot.snapshot_id for snapshot in ancestors_of(self.metadata.current_snapshot(), self.metadata)}
        return [one for one in ancestors_of(self.target, self.metadata) if one.snapshot_id not in before]

    @property
    def elsewhere(self) -> set[int]:
        """The ids of snapshots outside main's history after the rollback, also of some that have expired."""
        kept = {snapshot.snapshot_id for snapshot in ancestors_of(self.target, self.metadata)}
        there = {snapshot.snapshot_id for snapshot in self.metadata.snapshots}
        return (there | known_as_rolled_back(self.metadata)) - kept

    @property
    def after(self) -> TableMetadata:
        """The metadata after the commit; only its snapshots and main are exact."""
        main = self.metadata.refs[MAIN_BRANCH].model_copy(update={"snapshot_id": self.target.snapshot_id})
        refs = {**self.metadata.refs, MAIN_BRANCH: main}
        return self.metadata.model_copy(update={"refs": refs, "current_snapshot_id": self.target.snapshot_id})


def snapshot_of(table: str, metadata: TableMetadata, to: str, catalog: Catalog) -> Snapshot:
    """Returns the snapshot that a person names. Raises RollbackRefused, NoSuchRelease and CatalogUnavailable.

    to: a snapshot's id; a time as parse_time() takes it, for the snapshot that was current then; or
    ``release:<number>``.
    """
    if to.startswith(RELEASE) and (number := to.removeprefix(RELEASE)).isdecimal():
        members = release(table.partition(".")[0], number=int(number), catalog=catalog).members
        if (member := members.get(table)) is None or member.uuid != str(metadata.table_uuid):
            raise RollbackRefused(f"table {table}: {to} contains no snapshot of it")
        snapshot_id: int | None = member.snapshot_id
    elif to.isdecimal():
        snapshot_id = int(to)
    else:
        snapshot_id = _current_at(table, metadata, to)
    if snapshot_id is None or (found := metadata.snapshot_by_id(snapshot_id)) is None:
        raise RollbackRefused(f"table {table}: it has no snapshot {to}; {_known(metadata)}")
    if found.snapshot_id not in _main_history(metadata):
        raise RollbackRefused(f"table {table}: snapshot {to} was never on main: it belongs to another branch")
    return found


def _main_history(metadata: TableMetadata) -> set[int]:
    """Returns the snapshots that main has, or has had before a rollback."""
    logged = {entry.snapshot_id for entry in metadata.snapshot_log}
    return logged | {snapshot.snapshot_id for snapshot in ancestors_of(metadata.current_snapshot(), metadata)}


def _current_at(table: str, metadata: TableMetadata, to: str) -> int | None:
    """Returns the snapshot that was current at a time; None if the log does not go back to it."""
    try:
        at = parse_time(to)
    except ValueError:
        forms = f"a snapshot's id, a time such as 2026-01-31T08:00, or {RELEASE}<number>"
        raise RollbackRefused(f"table {table}: {to!r} is not {forms}") from None
    # Engines read the snapshot log for time travel: https://iceberg.apache.org/spec/#table-metadata-fields
    at_ms = at.timestamp() * 1000
    return next((one.snapshot_id for one in reversed(metadata.snapshot_log) if one.timestamp_ms <= at_ms), None)


def _known(metadata: TableMetadata) -> str:
    if not metadata.snapshots:
        return "it has none at all"
    oldest = min(snapshot.timestamp_ms for snapshot in metadata.snapshots)
    return f"the oldest one kept is from {time_text(oldest)}"


def time_text(epoch_ms: int) -> str:
    """Formats a time as `lakehouse trace` does, so that ``to`` takes it."""
    return shown_time(datetime.fromtimestamp(epoch_ms / 1000, UTC))


def source_problem(table: Table, after: TableMetadata) -> str | None:
    """Says why the source can't provide the removed rows again, if so. Raises SourceUnreachable and SourceLost.

    The table's position in it goes back with the rows; rows that the source has purged then exist only in the undone
    snapshots.
    """
    if table.source is None:
        return None
    text = positions_of(after).positions.get(table.source.name)
    return table.source.state().problem(table.source.name, Offsets.parse(text) if text else None)


def roll_back(catalog: Catalog, identifier: str, snapshot_id: int, head: int) -> None:
    """Sets main to a snapshot, in one commit that requires main at ``head``. Does nothing if main is there already.

    Raises RollbackRefused if main is elsewhere, or the table or snapshot is gone, MaintenanceContended if the attempts
    run out.
    """
    started = time.monotonic()

    def load() -> IcebergTable:
        try:
            return catalog.load_table(identifier)
        except NoSuchTableError:
            raise RollbackRefused(f"table {identifier}: it is no longer in the catalog") from None

    def landed() -> bool | None:
        return True if load().metadata.current_snapshot_id == snapshot_id else None

    def attempt() -> bool:
        table = load()
        metadata = table.metadata
        if metadata.current_snapshot_id == snapshot_id:
            return True
        if metadata.current_snapshot_id != head or metadata.snapshot_by_id(snapshot_id) is None:
            raise RollbackRefused(
                f"table {identifier}: expected main at snapshot {head}, found {metadata.current_snapshot_id}: another "
                "commit came in between, and the rollback would undo it unseen. Nothing was changed; check the table "
                "again"
            )
        # PyIceberg's own rollback_to_snapshot (0.12) drops the branch's retention.
        main = metadata.refs[MAIN_BRANCH].model_copy(update={"snapshot_id": snapshot_id})
        update = SetSnapshotRefUpdate.model_validate(
            {"ref-name": MAIN_BRANCH, **main.model_dump(by_alias=True, exclude_none=True)}
        )
        required = (
            AssertTableUUID(uuid=metadata.table_uuid),
            AssertRefSnapshotId.model_validate({"ref": MAIN_BRANCH, "snapshot-id": head}),
        )
        catalog.commit_table(table, required, (update,))
        return True

    def contended(problem: str, failure: Exception) -> MaintenanceContended:
        seconds = time.monotonic() - started
        return MaintenanceContended(
            f"table {identifier}: rolling back: {problem}, tried for {seconds:.0f} s; the last error was {failure!r}"
        )

    commit_persistently(identifier, "roll back", attempt, landed, contended)


COLUMNS = ("snapshot", "committed", "by run", "operation", "rows added", "rows removed", "partitions")
"""The headings of snapshot_rows()."""
ROLLED_BACK_TO = "rolled_back_to"
"""Metadata of the materializations that a rollback has logged."""
CLOCKS_APART = 3600
"""Seconds that a commit's clock may be ahead of Dagster's."""


def _snapshot_id(made: dg.AssetMaterialization) -> int:
    """Returns the snapshot that a materialization names, or 0."""
    named = made.metadata.get("snapshot_id")
    text = str(named.value) if named else ""
    return int(text) if text.isdecimal() else 0


def partitions_by_snapshot(
    instance: dg.DagsterInstance, table: Table, snapshots: Sequence[Snapshot]
) -> Mapping[int, Sequence[Partition]]:
    """Returns the partitions that runs have made in each snapshot."""
    if not snapshots:
        return {}
    since = min(snapshot.timestamp_ms for snapshot in snapshots) / 1000 - CLOCKS_APART
    ids, found = {snapshot.snapshot_id for snapshot in snapshots}, defaultdict[int, list[Partition]](list)
    for made in _materializations(instance, dg.AssetRecordsFilter(table.key, after_timestamp=since)):
        # Materializations that a rollback has logged don't count: they repeat the snapshot of a run.
        if ROLLED_BACK_TO not in made.metadata and (snapshot := _snapshot_id(made)) in ids:
            found[snapshot].append(made.partition)
    return found


def snapshot_rows(
    snapshots: Sequence[Snapshot], keys: Mapping[int, Sequence[Partition]], prefix: str = ""
) -> Iterator[Sequence[str]]:
    """Yields a row of COLUMNS for each snapshot. keys: of partitions_by_snapshot(). prefix: precedes the operation."""
    for snapshot in snapshots:
        summary = snapshot.summary
        said = summary.additional_properties if summary else {}
        made = keys.get(snapshot.snapshot_id)
        yield (
            str(snapshot.snapshot_id),
            time_text(snapshot.timestamp_ms),
            said.get(TOKEN, "").partition(SPANS)[0] or "another client's",
            f"{prefix}{summary.operation.value if summary else 'unknown'}",
            said.get("added-records", "0"),
            said.get("deleted-records", "0"),
            keys_text(sorted(key or "" for key in made)) if made else "",
        )


def events_after(
    instance: dg.DagsterInstance, table: Table, changed: Collection[Partition], elsewhere: Collection[int], target: int
) -> Iterator[dg.AssetMaterialization]:
    """Yields materializations for the partitions whose undone contents Dagster still shows.

    Each repeats the materialization of the run whose rows the partition has again, with its tags, so that automation
    and `lakehouse plan` see outdated inputs. If there is no such run, the partition is empty. Assets downstream see a
    new version.

    changed: the undone or restored partitions; others are checked too, as another client may have rolled back.
    elsewhere: the snapshots outside main's history.
    """
    spec = dg.AssetSpec(table.key, partitions_def=table.partitions)
    latest = latest_made(instance, dg.Definitions(assets=[spec]).resolve_asset_graph(), table.key)
    # A rollback that died after its commit may have logged nothing, so the latest event may be an earlier rollback's.
    wanted = {
        key
        for key, made in latest.items()
        if key in changed or _snapshot_id(made) in elsewhere or ROLLED_BACK_TO in made.metadata
    }
    current: dict[Partition, dg.AssetMaterialization] = {}
    # Empty for a table without partitions; the filter then takes None.
    of_wanted = sorted(key for key in wanted if key is not None)
    for made in _materializations(instance, dg.AssetRecordsFilter(table.key, asset_partitions=of_wanted or None)):
        if len(current) == len(wanted):
            break
        if made.partition in wanted and ROLLED_BACK_TO not in made.metadata and _snapshot_id(made) not in elsewhere:
            current.setdefault(made.partition, made)
    for key in sorted(wanted, key=str):
        found = current.get(key)
        if found and _snapshot_id(found) == _snapshot_id(latest[key]):  # Dagster shows these rows already
            continue
        empty: Mapping[str, Any] = {"snapshot_id": str(target), "dagster/partition_row_count": 0}
        yield dg.AssetMaterialization(
            table.key,
            partition=key,
            metadata={**(found.metadata if found else empty), ROLLED_BACK_TO: str(target)},
            tags=found.tags if found else {DATA_VERSION_TAG: f"rolled-back-to-{target}"},
        )


def _materializations(instance: dg.DagsterInstance, wanted: dg.AssetRecordsFilter) -> Iterator[dg.AssetMaterialization]:
    """Yields materializations, newest first."""
    cursor, has_more = None, True
    while has_more:
        found = instance.fetch_materializations(wanted, limit=BATCH, cursor=cursor)
        yield from (made for record in found.records if (made := record.asset_materialization))
        cursor, has_more = found.cursor, found.has_more
