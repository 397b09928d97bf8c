"""Runs one pass of the collector over one table: marks unneeded files, and moves those marked long ago to the trash."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from heapq import heappush, heappushpop
from itertools import islice, starmap
from typing import Any, NamedTuple
from uuid import UUID

from lakehouse_assets.errors import ForeignVersion, StorageRefused, UnknownStorage, UnreadableMetadata
from lakehouse_assets.maintenance.collect.judge import MOST, Judgement, Mark, WhyUnneeded
from lakehouse_assets.maintenance.collect.ledger import Entry
from lakehouse_assets.maintenance.collect.listing import Listed, Spool
from lakehouse_assets.maintenance.collect.missing import Unseen
from lakehouse_assets.maintenance.collect.needed import HELD, Periods, digest, is_over
from lakehouse_assets.maintenance.collect.report import EXAMPLES, LOOK, Kept, LastLook, Report, Tally
from lakehouse_assets.maintenance.collect.seen import NotJudged, Site, TableListing, load
from lakehouse_assets.maintenance.collect.trash import Trash
from lakehouse_assets.storage.place import Place, crc_owner

SHARE = 0.2
"""The largest share of a table's bytes moved without a person's permission."""
BATCH = 1000
"""Files between two reads of the metadata, and in a ledger record."""
DEFAULTS = Periods()
DUE, MODIFIED = 0, 6
"""The indexes of ``due`` and ``modified_ms`` in a row of ``unneeded``."""


def collect(
    site: Site,
    identifier: str,
    run: str,
    *,
    dry_run: bool,
    allow_large: bool = False,
    periods: Periods = DEFAULTS,
) -> Report:
    """Collects the unneeded files of one table.

    run: the Dagster run's id, for the ledger. allow_large: move files even if more than SHARE of the bytes is due. The
    report's problems say why no file was judged or moved.

    Raises StorageRefused, OSError and the catalog's errors; the ledger has all moved files, and the next pass
    continues. Errors after the table is loaded are noted for the check ``storage``, except in a dry run.
    """
    report = Report(identifier, dry_run)
    try:
        table = load(site, identifier)
    except NotJudged as error:
        report.problems += error.problems
        return report
    try:
        _Pass(TableListing.begin(site, identifier, table, periods), report, run, allow_large).run()
    except NotJudged as error:
        report.problems += error.problems
    except (UnreadableMetadata, UnknownStorage) as error:
        report.problems.append(f"table {identifier}: {error}")
    except Exception as error:  # any error of catalogs and storages
        report.problems.append(
            f"table {identifier}: the last look at its storage failed with {type(error).__name__}: {error}"
        )
        with suppress(Exception):  # the storage of notes may have failed
            _note(site, table.metadata.table_uuid, report)
        raise
    _note(site, table.metadata.table_uuid, report)
    return report


def _note(site: Site, uuid: UUID, report: Report) -> None:
    if report.dry_run:
        return
    location = site.notes(uuid, LOOK)
    before = LastLook.read(site.staging_io, location) or LastLook()
    before.after(report).write(site.staging_io, location)


class UnneededFile(NamedTuple):
    """A file that may go."""

    file: Listed
    due: bool
    first_seen_ms: int
    why: str
    token: str | None

    @classmethod
    def of(cls, due: bool, first_seen_ms: int, why: str, token: str | None, *file: Any) -> UnneededFile:
        """Reads a row of a spool."""
        return cls(Listed.of(*file), due, first_seen_ms, why, token)


@dataclass
class _Pass:
    seen: TableListing
    report: Report
    run_id: str
    allow_large: bool
    unneeded: Spool = field(default_factory=Spool)
    tokens: set[str] = field(default_factory=set)
    due_of_table: Tally = field(default_factory=Tally)
    """Without receipts, which are not in the table's folders."""
    gone: set[bytes] = field(default_factory=set)
    """Digests of places of files that may be in the trash, so they get no mark."""

    def run(self) -> None:
        with closing(self.seen.files), closing(self.unneeded):
            self.seen.list_all(self.report)
            self.seen.read_all()
            self._judge()
            if not self.report.dry_run:
                # Before the trash, so that a file that can't be taken does not prevent these steps.
                self.seen.note_owner()
                self._purge()
                self._mark()
                self._trash()

    def _judge(self) -> None:
        unseen, site = Unseen.of(self.seen.table), self.seen.site
        for file, judgement, mark in self.seen.judged():
            if judgement.keep:
                unseen.saw(digest(file.place))
                self.report.kept[judgement.keep].add(file.size)
            else:
                self._unneeded(file, judgement, mark)
        self.report.judged_ms = self.seen.now_ms
        self.report.is_large = not self.allow_large and self.due_of_table.size > SHARE * self.report.listed.size
        if self.report.is_large:
            self.report.problems.append(self._share_text())
        if missing := unseen.problem(lambda: site.trashes(self.report.identifier, self.seen.table)):
            self.report.problems.append(missing)

    def _unneeded(self, file: Listed, judgement: Judgement, mark: Mark | None) -> None:
        seen, token = self.seen, judgement.token
        # A mark is in the future if the storage's clock was set back.
        since_ms = min(mark.first_seen_ms, seen.now_ms) if mark else seen.now_ms
        is_receipt = judgement.why is WhyUnneeded.RECEIPT
        # Receipts go first; the run's other files wait for the next look, as it may be resumed in between.
        waits = not is_receipt and token in seen.leavings.receipts
        due = mark is not None and is_over(seen.periods.grace, mark.first_seen_ms, seen.now_ms) and not waits
        why = f"{judgement.why} {token}, which is {seen.knowledge.states[token]}" if token else judgement.why.value
        self.unneeded.add(due, since_ms, why, token, *file.row)
        self.report.unneeded[judgement.why].add(file.size)
        self.tokens |= {token} if token else set()
        if due:
            self.report.due.add(file.size)
            if len(self.report.examples) < EXAMPLES:
                self.report.examples.append((file.place.location, file.size, why))
        if due and not is_receipt:
            self.due_of_table.add(file.size)

    def _share_text(self) -> str:
        due, listed = self.due_of_table, self.report.listed
        return (
            f"table {self.report.identifier}: {due.files:,} files with {due.size / listed.size:.0%} of its bytes "
            f"({due.size:,} of {listed.size:,}) are due, expected at most {SHARE:.0%}. Nothing was moved. Check with a "
            "dry run, which names the first of these files; if nobody needs them, run it with allow_large"
        )

    def _mark(self) -> None:
        """Marks all files except those about to be moved: a restored file must not move at once again."""
        self._write_marks(lambda candidate: self.report.is_large or not candidate.due)

    def _write_marks(self, wanted: Callable[[UnneededFile], bool]) -> None:
        newest = {token: at for token, at in self.seen.newest_ms.items() if token in self.tokens}
        # Times of the MOST oldest files. They are negated, so that the heap drops the latest first.
        negated: list[int] = []
        for row in self.unneeded:
            if len(negated) < MOST:
                heappush(negated, -row[MODIFIED])
            else:
                heappushpop(negated, -row[MODIFIED])
        # islice: files may share the last of these times. Without rows, negated[0] is not read.
        oldest = islice((row for row in self.unneeded if row[MODIFIED] <= -negated[0]), MOST)
        marks = ((c.file, Mark(c.first_seen_ms, c.token)) for c in starmap(UnneededFile.of, oldest) if wanted(c))
        self.seen.mark_store.write(marks, newest)

    def _trash(self) -> None:
        if self.report.is_large or not self.report.due.files:
            return
        try:
            self._trash_due()
        finally:
            if len(self.gone) < self.report.due.files:  # the others need their marks, to go at the next pass
                self._write_marks(lambda candidate: not candidate.due or digest(candidate.file.place) not in self.gone)

    def _trash_due(self) -> None:
        seen, states = self.seen, self.seen.states(self.tokens)
        resumed = {token for token, state in states.items() if state in HELD}
        for root in (seen.site.receipts_of(self.report.identifier), *seen.where.roots):
            due = (UnneededFile.of(*row) for row in self.unneeded if row[DUE])
            there = (candidate for candidate in due if candidate.file.place.is_within(root))
            while batch := list(islice(there, BATCH)):
                seen.read_again()
                self._put(root, [candidate for candidate in batch if self._may_still_go(candidate, resumed)])

    def _put(self, root: Place, candidates: list[UnneededFile]) -> None:
        if not candidates:
            return
        trash = self.seen.site.trash(self.seen.table, self.report.identifier, root)
        # Before the move: if it raises an error, each file may be in the trash.
        self.gone.update(digest(candidate.file.place) for candidate in candidates)
        done = trash.put([Entry.of(c.file, c.why, c.first_seen_ms) for c in candidates], self.run_id)
        self.report.trashed += Tally(done.files, done.size)
        self.report.refused += done.kept
        self.gone.difference_update(digest(kept.place) for kept in done.kept)

    def _may_still_go(self, candidate: UnneededFile, resumed: set[str]) -> bool:
        """Whether the file is still unneeded; if not, reports why it stays."""
        place = candidate.file.place
        is_live = place in self.seen.live or crc_owner(place) in self.seen.live
        if is_live or candidate.token in resumed:
            reason = "became live" if is_live else f"the run {candidate.token} was resumed"
            self.report.refused.append(Kept(place, f"{reason} since it was listed"))
        return not (is_live or candidate.token in resumed)

    def _purge(self) -> None:
        """Deletes expired files, also of earlier tables of this name, whose errors don't end the pass."""
        for trash in self.seen.site.trashes(self.report.identifier, self.seen.table):
            try:
                done = trash.purge(self.seen.now_ms)
            except (StorageRefused, ForeignVersion) as error:
                if trash.owner.uuid == str(self.seen.table.metadata.table_uuid):
                    raise
                self.report.problems.append(self._left_text(trash, error))
                continue
            self.report.purged += Tally(done.files, done.size)
            self.report.refused += done.kept

    def _left_text(self, trash: Trash, error: Exception) -> str:
        ledger = f"{self.seen.site.staging}/collect/{trash.owner.uuid}"
        return (
            f"{error}. These files are of an earlier table of this name, {trash.owner.uuid}; this table is collected "
            f"all the same. If their storage is gone for good, delete {ledger}"
        )
