"""One look at a table: its files, runs, metadata and neighbours.

A file's Mark says since when it is unneeded; the table's OwnerMark names the catalog that has the table.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import starmap
from uuid import UUID

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.table import Table

from lakehouse_assets.commit.owner import TAKE_OVER, OwnerMark, mark_location, other_owner, read_mark, write_mark
from lakehouse_assets.errors import ForeignVersion, MaintenanceRefused, StorageRefused
from lakehouse_assets.maintenance.collect.judge import Judgement, Knowledge, Mark, Marks, MarkStore
from lakehouse_assets.maintenance.collect.ledger import Batch, Ledger, Owner
from lakehouse_assets.maintenance.collect.lineage import METADATA, LineageFacts, read_unnamed
from lakehouse_assets.maintenance.collect.listing import Listed, Spool, list_files, storage_now
from lakehouse_assets.maintenance.collect.needed import (
    Chain,
    Periods,
    PlaceSet,
    Reader,
    RunFiles,
    RunState,
    StagedFiles,
    digest,
    read_staged,
    state_of,
    without_links,
)
from lakehouse_assets.maintenance.collect.neighbours import Located, Locations, Neighbours
from lakehouse_assets.maintenance.collect.report import Report, notes, refusals
from lakehouse_assets.maintenance.collect.trash import Trash
from lakehouse_assets.storage.objects import folders_in, objects_at
from lakehouse_assets.storage.place import Place, place_of

logger = logging.getLogger(__name__)

Chains = Callable[[Collection[str]], Mapping[str, Chain]]
"""Looks up runs by token, as needed.chains()."""


@dataclass
class Site:
    """One catalog and its staging prefix."""

    catalog: Catalog
    staging: str
    chains: Chains
    exclusive_prefix: str | None = None
    """LAKEHOUSE_EXCLUSIVE_PREFIX, as Locations.conflicts() takes it."""
    neighbours: Neighbours = field(init=False)
    _newest: dict[str, Batch] = field(default_factory=dict)
    """Of each ledger, by the table's UUID."""

    def __post_init__(self) -> None:
        self.neighbours = Neighbours(self.catalog)

    @property
    def staging_place(self) -> Place:
        """The staging prefix. Raises UnknownStorage."""
        return place_of(self.staging)

    @property
    def staging_io(self) -> FileIO:
        """A new FileIO for the staging prefix."""
        return load_file_io(dict(self.catalog.properties), self.staging)

    def receipts_of(self, identifier: str) -> Place:
        """Returns the folder of receipts."""
        return self.staging_place.child(identifier)

    def notes(self, uuid: UUID, name: str) -> str:
        """Returns the location of the collector's notes about a table."""
        return notes(self.staging, uuid, name)

    def list_table(self, table: Table, root: Place) -> Iterator[Listed]:
        """Lists a table's folder, with vended credentials. Raises as list_files()."""
        return list_files(self._properties(table), root)

    def list_receipts(self, identifier: str) -> Iterator[Listed]:
        """Lists what runs of the table left in the staging prefix. Raises as list_files()."""
        return list_files(self.catalog.properties, self.receipts_of(identifier))

    def now_ms(self) -> int:
        """Returns the time by the storage's clock. Raises as storage_now()."""
        return storage_now(self.catalog.properties, self.staging)

    def write_mark(self, identifier: str, mark: OwnerMark, table: Table) -> None:
        """Writes an owner's mark into the table's folder. Raises StorageRefused and UnknownStorage."""
        with refusals(f"table {identifier}", "be marked as this catalog's", place_of(table.location())):
            write_mark(table, mark)

    def trash(self, table: Table, identifier: str, root: Place) -> Trash:
        """Returns the trash that takes the table's files below ``root``. Raises as Trash.for_location()."""
        owner = Owner(identifier, str(table.metadata.table_uuid))
        return Trash.for_location(self._properties(table), self.staging, owner, root)

    def trashes(self, identifier: str, table: Table | None) -> list[Trash]:
        """Returns the trashes of all tables, also dropped ones, with this identifier; the table's own first.

        Raises StorageRefused if the table can't be collected, or the staging prefix can't be read.
        """
        own = [self.trash(table, identifier, place_of(table.metadata.location))] if table else []
        properties = self._properties(table) if table else self.catalog.properties
        with refusals(f"table {identifier}", "be looked for in the trash", self.staging_place):
            named = [batch for batch in self._newest_batches() if batch.owner.identifier == identifier]
        others = [batch for batch in named if batch.owner not in [trash.owner for trash in own]]
        places = [(batch.owner, batch.entries[0].place) for batch in others]
        return [*own, *(Trash(properties, self.staging, *place) for place in places)]

    def _newest_batches(self) -> Iterator[Batch]:
        folder = self.staging_place.child("collect")
        for uuid in folders_in(self.catalog.properties, folder):
            if uuid not in self._newest:
                ledger = Ledger(objects_at(self.catalog.properties, folder.child(f"{uuid}/ledger")))
                with suppress(ForeignVersion):  # reported when that table itself is collected
                    if batch := ledger.last():
                        self._newest[uuid] = batch
            if uuid in self._newest:
                yield self._newest[uuid]

    def _properties(self, table: Table) -> dict[str, str]:
        return {**self.catalog.properties, **table.io.properties}


class NotJudged(MaintenanceRefused):
    """No file of the table can be judged."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass
class TableListing:
    """A table's listed files, and what decides about them."""

    site: Site
    identifier: str
    periods: Periods
    table: Table
    where: Located
    now_ms: int
    """Before the listing."""
    files: Spool = field(default_factory=Spool)
    leavings: RunFiles = field(default_factory=RunFiles)
    marks: Marks = field(default_factory=Marks)
    live: PlaceSet = field(default_factory=PlaceSet)
    """Places that the table names, or that others name outside their own folders."""
    knowledge: Knowledge = field(init=False)
    newest_ms: dict[str, int] = field(default_factory=dict)
    """As in Marks."""
    is_marked: bool = False
    """Whether the owner mark was listed; else it is not read: some storages answer "denied" for a missing one."""
    mark: OwnerMark | None = None
    _reader: Reader = field(init=False)
    _looked: Locations | None = None

    @classmethod
    def begin(cls, site: Site, identifier: str, table: Table, periods: Periods) -> TableListing:
        """Starts a pass. Raises UnknownStorage, and as Site.now_ms()."""
        return cls(site, identifier, periods, table, Located.of(identifier, table), site.now_ms())

    def list_all(self, report: Report) -> None:
        """Lists all files and receipts. Comes first: later files are not judged. Raises as Site.list_table()."""
        mark = without_links(place_of(mark_location(self.table.location())))
        folder = self.site.receipts_of(self.identifier)
        self.leavings = RunFiles.of(folder, self.site.list_receipts(self.identifier))
        for root in self.where.roots:
            for file in self.site.list_table(self.table, root):
                self.files.add(*file.row)
                self.is_marked = self.is_marked or file.place == mark
                self.leavings.note(file)
                report.listed.add(file.size)

    def read_all(self) -> None:
        """Reads the marks, the runs and their staged files, then the table's metadata.

        In this order, files that a run publishes meanwhile are live. Raises NotJudged, UnreadableMetadata, OSError, and
        the errors of Dagster's storage and the catalog.
        """
        self.marks = self.mark_store.read()
        self.newest_ms = {**self.marks.newest_ms, **self.leavings.newest_ms}
        states = self.states(self.newest_ms)
        staged = read_staged(self.table.io, self.site.staging_io, self.leavings, states)
        self._reader = Reader(self.table.io, self.live.add)
        self.read_again()
        self.mark = read_mark(self.table) if self.is_marked else None
        if found := other_owner(self.table, self.mark):
            raise NotJudged(f"{found}. None of its files is judged until then")
        settled_ms = self.mark.settled_ms if self.mark else 0
        foreign, others = read_unnamed(self.table, self._unnamed_metadata(staged), self._reader, settled_ms)
        if others:
            raise NotJudged(self._others_text(others))
        self.knowledge = Knowledge(self.live, staged, foreign, states, self.now_ms, self.periods)

    def states(self, tokens: Collection[str]) -> dict[str, RunState]:
        """Returns current states of runs."""
        chains = self.site.chains(tokens)
        return {
            token: state_of(chains.get(token), self.newest_ms[token], self.now_ms, self.periods) for token in tokens
        }

    def read_again(self) -> None:
        """Reads the table's metadata again, and other tables if the last look is too old.

        Raises NotJudged if the table left the catalog, was replaced, or shares folders.
        """
        table = load(self.site, self.identifier)
        where = Located.of(self.identifier, table)
        if where != self.where:
            raise NotJudged(
                f"table {self.identifier}: it was {self.where.uuid} at {self.where.roots[0].location} when its files "
                f"were listed, and is {where.uuid} at {where.roots[0].location} now. Nothing more was moved; the next "
                "pass looks at the new one"
            )
        self.table = table
        self._reader.io = table.io
        self._reader.read(table.metadata_location, table.metadata)
        self._read_neighbours()

    def note_owner(self) -> None:
        """Writes this catalog's owner mark if the table has none.

        Table buckets refuse names unknown to Iceberg; there, only lineage reveals another owner.
        """
        if self.mark is None:
            try:
                self.site.write_mark(self.identifier, OwnerMark.of(self.table), self.table)
            except StorageRefused as error:
                logger.warning("%s", error)

    @property
    def mark_store(self) -> MarkStore:
        """The store of the table's marks."""
        return MarkStore(self.site.staging_io, self.site.notes(self.table.metadata.table_uuid, "marks"))

    def judged(self) -> Iterator[tuple[Listed, Judgement, Mark | None]]:
        """Yields all files and receipts, each with its judgement and its mark."""
        for file in starmap(Listed.of, self.files):
            mark = self.marks.of(file)
            yield file, self.knowledge.judge(file, mark.token if mark else None), mark
        for token, receipts in self.leavings.receipts.items():
            for receipt in receipts:
                yield receipt, self.knowledge.judge_receipt(token), self.marks.of(receipt)

    def _read_neighbours(self) -> None:
        site = self.site
        locations = site.neighbours.look()
        if locations is self._looked:
            return
        self._looked = locations
        exclusive_prefix = place_of(site.exclusive_prefix) if site.exclusive_prefix else None
        if conflicts := locations.conflicts(self.where, site.staging_place, exclusive_prefix):
            text = "table {}: {}. None of its files is judged until that is fixed"
            raise NotJudged(*(text.format(self.identifier, found) for found in conflicts))
        for location in site.neighbours.named_by_others(self.where.uuid):
            self.live.add(location)

    def _unnamed_metadata(self, staged: StagedFiles) -> Iterator[Listed]:
        for location, *more in self.files:
            if location.endswith(METADATA):
                file = Listed.of(location, *more)
                if not (file.place in self.live or file.place in staged.held or digest(file.place) in staged.free):
                    yield file

    def _others_text(self, others: Sequence[tuple[str, LineageFacts]]) -> str:
        location, facts = max(others, key=lambda file: file[1].updated_ms)
        written = datetime.fromtimestamp(facts.updated_ms / 1000, UTC)
        base = facts.log[-1].metadata_file if facts.log else "no other"
        return (
            f"table {self.identifier}: {location}, written {written:%Y-%m-%d %H:%M} UTC on top of {base}, is a version "
            f"that this catalog lacks ({len(others):,} in all); its own is {self.table.metadata_location}. So another "
            "catalog has the table: one to which it was copied or registered, or this one before a backup of it was "
            "restored. It is unknown which files that catalog needs, so none is judged. Keep the table in one catalog: "
            "drop it from this one, without its files, or from the other one, and take it over with the job "
            f"{TAKE_OVER}"
        )


def load(site: Site, identifier: str) -> Table:
    """Loads a table. Raises NotJudged if it is not in the catalog, and the catalog's errors."""
    try:
        return site.catalog.load_table(identifier)
    except NoSuchTableError:
        raise NotJudged(
            f"table {identifier}: it is not in the catalog, so none of its files is judged. Register it "
            "again, or, if it was dropped on purpose, remove its folder by hand"
        ) from None
