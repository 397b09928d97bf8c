"""The inputs of a run: which version of each it reads (a pin), and how far it has read its changes (a position)."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, cast

import dagster as dg
from dagster._core.definitions.data_version import INPUT_DATA_VERSION_TAG_PREFIX, INPUT_EVENT_POINTER_TAG_PREFIX
from dagster._core.execution.plan.execute_step import _build_data_version_tags, _get_input_provenance_data
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.commit.commit_part import CommitPart, SummaryEntries
from lakehouse_assets.commit.positions import READER, PositionUpdate, positions_of
from lakehouse_assets.commit.staged import StagedChunk
from lakehouse_assets.commit.strategies import OwnReads
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import with_retries
from lakehouse_assets.errors import PublishRefused, StageAgain
from lakehouse_assets.inputs.pins import INPUTS, gone, pin_inputs, set_tags
from lakehouse_assets.keys_text import parts_of
from lakehouse_assets.run.extension import RunHook, Shown
from lakehouse_assets.run.jobs import FILE_COLUMNS, FILES, PINNED, READS, markdown_table, shown_table
from lakehouse_assets.run.plan import ANEW
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.run.run_tags import RunTags
from lakehouse_assets.wire.receipts import Receipt
from lakehouse_assets.wire.work import (
    MAIN,
    HookWork,
    Pin,
    Position,
    ReadOn,
    encode,
    table_and_ref,
)

if TYPE_CHECKING:
    from lakehouse_assets.run.run import Run, Staged

logger = logging.getLogger(__name__)

LONGEST = 4096
"""The most characters of the summary entry INPUTS: each load of a table reads the summaries of all its snapshots."""
UPSTREAM = (INPUT_DATA_VERSION_TAG_PREFIX, INPUT_EVENT_POINTER_TAG_PREFIX)
"""How the names of the tags about deps begin."""
SHOWN = 50
"""The most inputs of a run, or files of a partition, that the UI shows."""
Pins = tuple[Pin, ...]


class Upstream(RunHook):
    """Tags with the versions of the deps that Dagster knew as the run began: by them it judges if rows are outdated.

    A resumed run reports the tags of the run that it resumes, because it reads that run's pins.
    """

    name: ClassVar[str] = "upstream"

    def plan(self, run: Run, now: TableMetadata) -> Any:
        """Returns the tags."""
        step = run.context.get_step_execution_context()
        provenance = _get_input_provenance_data(run.table.key, step)
        # Also makes tags of the run's own versions, for which empty texts do: they are left out below.
        tags = _build_data_version_tags(dg.DataVersion(""), "", provenance, False)
        return {name: tag for name, tag in tags.items() if name.startswith(UPSTREAM)}

    def shown(self, run: Run, forks: Sequence[StagedChunk]) -> Shown:
        """Returns the tags of the plan."""
        return Shown(tags=run.plan.part(self.name, dict[str, str]) or {})


class PinnedInputs(RunHook):
    """The versions of the tables that a run reads, and what its step has read of their changes."""

    name: ClassVar[str] = "inputs"

    def __init__(self) -> None:
        self.pins: Pins = ()
        self.read_on: ReadOn | None = None
        self.needs_new_pins = False
        """Whether the step read its own table, or changes: with the old pins, the commit would be refused again."""

    def plan(self, run: Run, now: TableMetadata) -> Any:
        """Pins the inputs. Raises as pin_inputs()."""
        return encode(Pins, self._pinned(run))

    def _pinned(self, run: Run) -> Pins:
        table, catalog = run.table, with_retries(run.lakehouse.catalog)
        return pin_inputs(catalog, table.identifier, table.dep_names, table.reads, run.journal.io, run.journal.folder)

    def resume(self, run: Run) -> None:
        """Checks that the pins can still be read. Raises PublishRefused if a snapshot is gone."""
        if self.pins and (problems := gone(self.pins, with_retries(run.lakehouse.catalog))):
            raise PublishRefused(
                f"table {run.table.identifier}: the run {run.plan.token}, which this one resumes, can't read its "
                f"pinned inputs any more: {'; '.join(problems)}. Nothing was staged or published. {ANEW}"
            )

    def begin(self, run: Run, now: IcebergTable, again: StageAgain | None) -> None:
        """Takes the pins of the plan. If the run stages again, pins again only where the commit would refuse these."""
        if again is None:
            self.pins = run.plan.part(self.name, Pins) or ()
        elif again.inputs_moved or self.needs_new_pins:
            self.pins = self._pinned(run)
        self.read_on = read_on_of(run.table, now.metadata, run.context.run.tags)

    def work(self, run: Run) -> HookWork | None:
        """Returns the pins, and the positions to read changes from."""
        if not self.pins:
            return None
        told = {"pins": encode(Pins, self.pins), "read_on": encode(ReadOn | None, self.read_on)}
        return HookWork("lakehouse_assets.inputs.worker:ReadInputs", told)

    def parts(self, run: Run, staged: Staged) -> Iterable[CommitPart]:
        """Names the inputs in the summary. Checks the table itself if the step has read it."""
        own = next((pin for pin in self.pins if pin.name == run.table.identifier), None)
        self.needs_new_pins = own is not None or bool(read_to(fork.receipt for fork in staged.forks))
        yield entry_of(self.pins)
        if own:
            yield OwnReads(own.snapshot_id, run.region_of(staged.chunks), staged.forks[0].schema)

    def shown(self, run: Run, forks: Sequence[StagedChunk]) -> Shown:
        """Returns the pins, and what was read."""
        as_changes = read_to(fork.receipt for fork in forks)
        # If an earlier process has published, begin() found the positions after that, not those it began from.
        read_on = None if run.staging.earlier else self.read_on
        return Shown(dict(ui_metadata(run.table, self.pins, as_changes, read_on)))


class Positions(RunHook):
    """The table's positions in its inputs and its source: a part of each commit."""

    name: ClassVar[str] = "positions"
    to: Mapping[str, str] | None = None
    """None until parts() is called; if None at the end, an earlier process has published."""
    since: ReadOn
    """The positions at staging."""

    def begin(self, run: Run, now: IcebergTable, again: StageAgain | None) -> None:
        """Reads the positions at staging."""
        self.to, self.since = None, positions_of(now.metadata)

    def parts(self, run: Run, staged: Staged) -> Iterable[CommitPart]:
        """Returns the update of the positions."""
        self.to = read_to(fork.receipt for fork in staged.forks)
        return [PositionUpdate(self.to, self.since)]

    def published(self, run: Run, keys: Sequence[str]) -> None:
        """Keeps unread changes from expiry, unless the run is known to have read none."""
        if self.to is None or self.to:
            keep_unread(run.lakehouse, run.table.identifier)


class DropZoneFiles(RunHook):
    """Shows the drop zone files of each partition."""

    name: ClassVar[str] = "files"

    def shown(self, run: Run, forks: Sequence[StagedChunk]) -> Shown:
        """Returns them by partition."""
        found = files_by_key(fork.receipt for fork in forks)
        return Shown(of_key={key: {FILES: files} for key, files in found.items()})


def entry_of(pins: Sequence[Pin]) -> SummaryEntries:
    """Returns the summary entry that names the run's inputs.

    It is ``{"nyc.flights": "<snapshot id>@<uuid>"}``, or beyond LONGEST only their number.
    """
    if not pins:
        return SummaryEntries({})
    text = json.dumps({pin.name: f"{pin.snapshot_id}@{pin.uuid}" for pin in pins}, separators=(",", ":"))
    named = text if len(text) <= LONGEST else f"{len(pins)} tables: see the materialization of this run"
    return SummaryEntries({INPUTS: named})


def ui_metadata(
    table: Table, pins: Sequence[Pin], as_changes: Collection[str], read_on: ReadOn | None
) -> Mapping[str, Any]:
    """Returns the metadata of a run's inputs.

    as_changes: inputs whose changes were read. read_on: from which positions; None if unknown.
    """
    if not pins:
        return {}
    rows = (
        (
            pin.name,
            str(pin.snapshot_id or "empty"),
            f"{pin.committed_at:%Y-%m-%d %H:%M:%S} UTC" if pin.committed_at else "",
            f"[{pin.run_id[:8]}](/runs/{pin.run_id})" if pin.run_id else "",
            _read_since(pin.name, as_changes, read_on),
        )
        for pin in pins[:SHOWN]
    )
    more = f"\n\nand {len(pins) - SHOWN} more" if len(pins) > SHOWN else ""
    text = markdown_table(("table", "snapshot", "committed", "by run", "read"), rows) + more
    of_others = {pin.name: str(pin.snapshot_id) for pin in pins if pin.name not in table.dep_names}
    of_deps = {pin.name: str(pin.snapshot_id) for pin in pins if pin.name in table.dep_names}
    by_kind = {READS: of_others, PINNED: of_deps}
    return {"inputs": dg.MetadataValue.md(text)} | {kind: found for kind, found in by_kind.items() if found}


def pinned_in(made: dg.AssetMaterialization, metadata: TableMetadata | None) -> Mapping[str, str]:
    """Returns the snapshots that a materialization's run read of its deps, as text; "None" for an empty dep.

    Earlier versions of this library named them only in the commit: they are in ``metadata``, the table's.
    """
    if PINNED in made.metadata:
        return cast("Mapping[str, str]", made.metadata[PINNED].value)
    own = made.metadata.get("snapshot_id")
    snapshot = metadata.snapshot_by_id(int(str(own.value))) if own and metadata else None
    entry = snapshot.summary[INPUTS] if snapshot and snapshot.summary else None
    if not (entry or "").startswith("{"):  # else it is only a number of tables
        return {}
    return {name: version.partition("@")[0] for name, version in json.loads(entry or "{}").items()}


def _read_since(name: str, as_changes: Collection[str], read_on: ReadOn | None) -> str:
    if name not in as_changes:
        return "pinned version"
    if read_on is None:
        return "changes"
    since = read_on.positions.get(name)
    return f"changes since {since.partition('@')[0]}" if since else "all, as changes"


def files_by_key(chunks: Iterable[Receipt]) -> dict[str, dg.TableMetadataValue]:
    """Returns each partition's drop zone files.

    A file belongs to the partition whose key begins its name, else to all partitions of its chunk.
    """
    found: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    for receipt in chunks:
        keys = parts_of(receipt.keys)
        for file in receipt.files:
            name = file.path.rpartition("/")[2]
            of_file = [key for key in keys if key and name.startswith(f"{key}.")]
            for key in of_file or keys:
                modified = datetime.fromtimestamp(file.modified_ms / 1000, UTC)
                found[key].append((file.path, f"{file.size:,}", f"{modified:%Y-%m-%d %H:%M:%S} UTC"))
    return {key: shown_table(FILE_COLUMNS, files[:SHOWN]) for key, files in found.items()}


def read_on_of(table: Table, metadata: TableMetadata, tags: Mapping[str, str]) -> ReadOn | None:
    """Returns the positions from which a run reads its inputs' changes; None if it can't continue. Raises BadRunTag.

    It can't if it replaces rows, as it would lose what earlier runs read; nor with partitions, as each chunk would read
    all changes.
    """
    # Read in any case, so that a bad tag is refused.
    reads_all = RunTags.of(tags).read_all
    if table.write_mode.replaces or table.partitions is not None:
        return None
    return ReadOn() if reads_all else positions_of(metadata)


def read_to(receipts: Iterable[Receipt]) -> dict[str, str]:
    """Returns the positions that a run has read to, by input or source."""
    told = [work for receipt in receipts for work in receipt.extensions.values() if isinstance(work, Mapping)]
    return {name: position for one in told for name, position in one.get("read_to", {}).items()}


def keep_unread(lakehouse: Lakehouse, table: str) -> None:
    """Tags the last snapshot read of each input, so that later ones don't expire. Raises nothing.

    Call it after the commit: a run that dies in between leaves an older tag, which keeps more.
    """
    try:
        catalog = lakehouse.catalog()
        positions = positions_of(with_retries(lambda: catalog.load_table(table)).metadata).positions
    except Exception as error:  # catalogs and storages have their own; the rows are published
        logger.warning(
            "%s: unread snapshots of its inputs may expire, because its positions can't be read: %r", table, error
        )
        return
    for name, text in positions.items():
        # A source, such as kafka:flight-events. It is purged only up to what was moved, so nothing need be kept.
        if ":" in name:
            continue
        position, (identifier, ref) = Position.parse(text), table_and_ref(name)
        tag = f"{READER}{table}" if ref == MAIN else f"{READER}{table}.{ref}"

        def wanted(found: TableMetadata, tag: str = tag, position: Position = position) -> dict[str, int | None]:
            is_there = found.table_uuid == position.uuid and found.snapshot_by_id(position.snapshot_id) is not None
            return {tag: position.snapshot_id} if is_there else {}

        try:
            set_tags(catalog, identifier, wanted)
        except Exception as error:  # catalogs and storages have their own; the rows are published
            logger.warning("%s: %s may expire before it is read, because it can't be tagged: %r", table, name, error)
