"""Reads what a table's folders hold and what is known of each file, in the one order that misses nothing live.

How a file is judged by it is in judge.py, what is done with it in collect.py.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import starmap

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from lakehouse_assets.collect.judge import Judgement, Knowledge
from lakehouse_assets.collect.leases import Periods, states_of
from lakehouse_assets.collect.lineage import LineageFacts
from lakehouse_assets.collect.links import without_links
from lakehouse_assets.collect.listing import Listed
from lakehouse_assets.collect.locations import Located, Locations, located
from lakehouse_assets.collect.marks import Marks, MarkStore
from lakehouse_assets.collect.pass_report import CollectRule, Problem, Report
from lakehouse_assets.collect.reachable import PlaceSet, Reader
from lakehouse_assets.collect.site import Site
from lakehouse_assets.collect.spool import Spool, listed_fields, listed_of
from lakehouse_assets.collect.staged_files import Leavings, StagedFiles, read_staged
from lakehouse_assets.collect.unnamed_metadata import is_metadata, read_unnamed
from lakehouse_assets.commit.owner import TAKE_OVER, OwnerMark, mark_location, other_owner, read_mark
from lakehouse_assets.errors import MaintenanceRefused, StorageRefused
from lakehouse_assets.storage.place import place_of

logger = logging.getLogger(__name__)


class NotJudged(MaintenanceRefused):
    """No file of the table can be judged; ``problems`` say why, each with what to do next."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("; ".join(problem.message for problem in problems))
        self.problems = problems


@dataclass
class TableListing:
    """A table's folders, listed, and what is known of the files in them."""

    site: Site
    identifier: str
    periods: Periods
    table: Table
    where: Located
    now_ms: int
    """The time before the listing, by the storage's clock."""
    files: Spool = field(default_factory=Spool)
    """The files in the table's folders."""
    metadata_files: Spool = field(default_factory=Spool)
    """The metadata files among them."""
    leavings: Leavings = field(default_factory=Leavings)
    marks: Marks = field(default_factory=Marks)
    live: PlaceSet = field(default_factory=PlaceSet)
    """The places that the table's metadata names, and those that other tables name outside their own folders."""
    knowledge: Knowledge = field(init=False)
    newest_ms: dict[str, int] = field(default_factory=dict)
    """The time when the last file of a run was written, by token."""
    is_marked: bool = False
    """Whether a mark of the table's owner was listed: some storage answers "denied" for a file that is not there."""
    mark: OwnerMark | None = None
    _reader: Reader = field(init=False)
    _looked: Locations | None = None

    @classmethod
    def begin(cls, site: Site, identifier: str, table: Table, periods: Periods) -> TableListing:
        """Begins a pass over a table as it is by now, by the storage's clock.

        Raises UnknownStorage, and as Site.now_ms().
        """
        return cls(site, identifier, periods, table, located(identifier, table), site.now_ms())

    def list_all(self, report: Report) -> None:
        """Lists the table's files and receipts, before anything else is read.

        Whatever is written from now on is not judged. Raises as Site.list_table().
        """
        mark = without_links(place_of(mark_location(self.table.location())))
        folder = self.site.receipts_of(self.identifier)
        self.leavings = Leavings.of(folder, self.site.list_receipts(self.identifier))
        for root in self.where.roots:
            for file in self.site.list_table(self.table, root):
                fields = listed_fields(file)
                self.files.add(*fields)
                if is_metadata(file):
                    self.metadata_files.add(*fields)
                self.is_marked = self.is_marked or file.place == mark
                self.leavings.note(file)
                report.listed.add(file.size)

    def read_all(self) -> None:
        """Reads the marks, the runs and what they staged, and then the table's metadata.

        Runs come before metadata: what a run publishes in between is live by then. Raises NotJudged,
        UnreadableMetadata, OSError and whatever Dagster's storage and the catalog raise.
        """
        uuid = self.table.metadata.table_uuid
        self.marks = self.mark_store.read(uuid)
        self.newest_ms = {**self.marks.newest_ms, **self.leavings.newest_ms}
        states = states_of(self.site.chains(self.newest_ms), self.newest_ms, self.now_ms, self.periods)
        staged = read_staged(self.table.io, self.site.staging_io, self.leavings, states)
        self._reader = Reader(self.table.io, self._is_live)
        self.read_again()
        self.mark = read_mark(self.table) if self.is_marked else None
        if found := other_owner(self.table, self.mark):
            raise NotJudged(Problem(CollectRule.OWNER, f"{found}. None of its files is judged until then"))
        settled_ms = self.mark.settled_ms if self.mark else 0
        unnamed = read_unnamed(self.table, list(self._unnamed_metadata(staged)), self._reader, settled_ms)
        if unnamed.taken:
            raise NotJudged(Problem(CollectRule.OWNER, self._taken_text(unnamed.taken)))
        self.knowledge = Knowledge(self.live, staged, unnamed.kept, states, self.now_ms, self.periods)

    def read_again(self) -> None:
        """Reads what the table names now, and what other tables name once the last look at them is too old.

        Raises NotJudged where the table is not in the catalog any more, another one took its place, or one came to lie
        there.
        """
        table = load(self.site, self.identifier)
        where = located(self.identifier, table)
        if where != self.where:
            message = (
                f"table {self.identifier}: it was {self.where.uuid} at {self.where.roots[0].location} when its files "
                f"were listed, and is {where.uuid} at {where.roots[0].location} now. Nothing more was moved; the next "
                "pass looks at the new one"
            )
            raise NotJudged(Problem(CollectRule.CHANGED, message))
        self.table = table
        self._reader.io = table.io
        self._reader.read(table.metadata_location, table.metadata)
        self._read_neighbours()

    def note_owner(self) -> None:
        """Leaves a mark in the table's folder that this catalog has it, where there is none.

        Table buckets take no file of a name that Iceberg does not know: there lineage alone tells of another owner.
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

    def judged(self) -> Iterator[tuple[Listed, Judgement]]:
        """Gives every listed file with its judgement, receipts too."""
        for file in starmap(listed_of, self.files):
            yield file, self.knowledge.judge(file, self.marks.token_of(file))
        for token, receipts in self.leavings.receipts.items():
            for receipt in receipts:
                yield receipt, self.knowledge.judge_receipt(token)

    def _is_live(self, location: str) -> None:
        self.live.add(location)

    def _read_neighbours(self) -> None:
        locations = self.site.neighbours.look()
        if locations is self._looked:
            return
        self._looked = locations
        if conflicts := locations.conflicts(self.where, self.site.staging_place, self.site.unshared_place):
            text = "table {}: {}. None of its files is judged until that is mended"
            raise NotJudged(*(Problem(CollectRule.PLACE, text.format(self.identifier, found)) for found in conflicts))
        for location in self.site.neighbours.named_by_others(self.where.uuid):
            self.live.add(location)

    def _unnamed_metadata(self, staged: StagedFiles) -> Iterator[Listed]:
        """Gives the metadata files that neither the catalog nor a run names."""
        for file in starmap(listed_of, self.metadata_files):
            place = file.place
            if not (place in self.live or place in staged.held or staged.token_of(place)):
                yield file

    def _taken_text(self, taken: Sequence[tuple[str, LineageFacts]]) -> str:
        location, facts = max(taken, key=lambda file: file[1].updated_ms)
        written = datetime.fromtimestamp(facts.updated_ms / 1000, UTC)
        base = facts.log[-1].location if facts.log else "no other"
        return (
            f"table {self.identifier}: {location}, written {written:%Y-%m-%d %H:%M} UTC on top of {base}, is a version "
            f"of it that this catalog lacks ({len(taken):,} in all); its own is {self.table.metadata_location}. So "
            "another catalog has the table: one that it was copied or registered to, or this one before a backup of it "
            "was restored. Which files it needs is not known here, so none is judged. Let one catalog have the table: "
            f"drop it from this one, without its files, or from the other one, and take it over by the job {TAKE_OVER}"
        )


def load(site: Site, identifier: str) -> Table:
    """Returns the table as it is now. Raises NotJudged where it is not in the catalog, and what the catalog raises."""
    try:
        return site.catalog.load_table(identifier)
    except NoSuchTableError:
        message = (
            f"table {identifier}: it is not in the catalog (any more), so nothing of it is judged. Register it again, "
            "or remove its folder by hand if it was dropped on purpose"
        )
        raise NotJudged(Problem(CollectRule.CHANGED, message)) from None
