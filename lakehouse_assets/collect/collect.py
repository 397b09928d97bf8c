"""Runs one pass of the collector over one table: list, read, judge, mark, and move to the trash what is due.

The rules are judge.py's and leases.py's; how a file goes and comes back is trash.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from heapq import heappush, heappushpop
from itertools import islice
from uuid import UUID

from lakehouse_assets.collect.judge import Judgement, WhyUnneeded
from lakehouse_assets.collect.leases import HELD, Periods, states_of
from lakehouse_assets.collect.listing import Listed
from lakehouse_assets.collect.marks import MOST
from lakehouse_assets.collect.pass_report import LOOK, CollectRule, Example, LastLook, Problem, Report, Tally
from lakehouse_assets.collect.reachable import digest
from lakehouse_assets.collect.seen import NotJudged, TableListing, load
from lakehouse_assets.collect.site import Site
from lakehouse_assets.collect.spool import Mark, Spool
from lakehouse_assets.collect.trash import Due, Kept
from lakehouse_assets.errors import UnknownStorage, UnreadableMetadata
from lakehouse_assets.storage.place import Place, crc_owner

SHARE = 0.2
"""The largest part of a table's bytes that goes by itself; more goes only if a person allows it."""
BATCH = 1000
"""Files between two looks at the table's metadata: as many as one record of the trash's ledger holds."""
DEFAULTS = Periods()
MODIFIED = 3
"""The index of a file's last modification in a row of ``unneeded``: behind due, location and size."""


def collect(
    site: Site,
    identifier: str,
    run: str,
    *,
    dry_run: bool,
    allow_large: bool = False,
    periods: Periods = DEFAULTS,
) -> Report:
    """Collects one table's files that nobody needs.

    run: the id of the Dagster run, for the ledger. dry_run: nothing is marked, moved or deleted. allow_large: files are
    moved even if more than SHARE of the table's bytes is due.

    The report's problems say why nothing could be judged, or why nothing was moved. Raises StorageRefused, OSError and
    what catalogs raise where they can't be asked: what was moved by then is in the ledger, and the next pass goes on
    from there. Whatever ends the pass early once the table is loaded is noted for the check ``storage``, unless this is
    a dry run.
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
        report.problems.append(Problem(CollectRule.UNREADABLE, f"table {identifier}: {error}"))
    except Exception as error:  # catalogs and storages have errors of their own
        text = f"table {identifier}: the last look at its storage ended by {type(error).__name__}: {error}"
        report.problems.append(Problem(CollectRule.ENDED, text))
        with suppress(Exception):  # the storage of notes may be what failed
            _note(site, table.metadata.table_uuid, report)
        raise
    with report.step("note"):
        _note(site, table.metadata.table_uuid, report)
    return report


def _note(site: Site, uuid: UUID, report: Report) -> None:
    if report.dry_run:
        return
    location = site.notes(uuid, LOOK)
    before = LastLook.read(site.staging_io, location) or LastLook()
    before.after(report).write(site.staging_io, location)


@dataclass
class _Pass:
    """The state of one pass over one table."""

    seen: TableListing
    report: Report
    run_id: str
    allow_large: bool
    unneeded: Spool = field(default_factory=Spool)
    """A row for each file that may go: whether it is due, and the fields of its mark."""
    tokens: set[str] = field(default_factory=set)
    """The tokens of the runs that the unneeded files belonged to."""
    due_of_table: Tally = field(default_factory=Tally)
    """The due files in the table's folders: all but receipts."""
    gone: set[bytes] = field(default_factory=set)
    """Digests of the places whose files the trash has, or may have."""

    def run(self) -> None:
        steps: dict[str, Callable[[], None]] = {"list": self._list, "read": self.seen.read_all, "judge": self._judge}
        if not self.report.dry_run:
            # Steps that a file which can't be taken can't make fail come before the trash.
            steps |= {"own": self.seen.note_owner, "purge": self._purge, "mark": self._mark, "trash": self._trash}
        with closing(self.seen.files), closing(self.seen.metadata_files), closing(self.unneeded):
            for name, step in steps.items():
                with self.report.step(name):
                    step()

    def _list(self) -> None:
        self.seen.list_all(self.report)

    def _judge(self) -> None:
        for file, judgement in self.seen.judged():
            if judgement.keep:
                self.report.kept[judgement.keep].add(file.size)
            else:
                self._unneeded(file, judgement)
        self.report.judged_ms = self.seen.now_ms
        if self._is_large:
            self.report.problems.append(Problem(CollectRule.SHARE, self._share_text()))

    def _unneeded(self, file: Listed, judgement: Judgement) -> None:
        token, now_ms = judgement.token, self.seen.now_ms
        marked_ms = self.seen.marks.first_seen(file)
        due = marked_ms is not None and now_ms - marked_ms >= self.seen.periods.grace_ms and not self._waits(judgement)
        # A mark from the future is of a storage whose clock was set back.
        since_ms = min(marked_ms or now_ms, now_ms)
        why = f"{judgement.why} {token}, which is {self.seen.knowledge.states[token]}" if token else judgement.why.value
        self.unneeded.add(due, *Mark(file, since_ms, why, token).fields)
        self.report.unneeded[judgement.why].add(file.size)
        self.tokens |= {token} if token else set()
        if due:
            self.report.add_due(Example(file.place.location, file.size, why))
        if due and judgement.why is not WhyUnneeded.RECEIPT:
            self.due_of_table.add(file.size)

    def _waits(self, judgement: Judgement) -> bool:
        """Tells whether the file has to wait because its run still has receipts.

        Receipts go first; the run's other files follow when the run was looked at once more, as it may be resumed in
        between.
        """
        return judgement.why is not WhyUnneeded.RECEIPT and judgement.token in self.seen.leavings.receipts

    @property
    def _is_large(self) -> bool:
        return not self.allow_large and self.due_of_table.size > SHARE * self.report.listed.size

    def _share_text(self) -> str:
        due, listed = self.due_of_table, self.report.listed
        return (
            f"table {self.report.identifier}: {due.files:,} files with {due.size / listed.size:.0%} of its bytes "
            f"({due.size:,} of {listed.size:,}) are due, expected at most {SHARE:.0%}. Nothing was moved. Look what "
            "they are by a dry run, which names the first of them; if nobody needs them, run it with allow_large"
        )

    def _mark(self) -> None:
        """Marks all files but those that are about to go.

        When a person brings one of those back, it must not go again at the next pass, however this pass ends.
        """
        self._write_marks(lambda due, mark: self._is_large or not due)

    def _write_marks(self, wanted: Callable[[bool, Mark], bool]) -> None:
        newest = {token: at for token, at in self.seen.newest_ms.items() if token in self.tokens}
        cutoff = _nth_smallest(MOST, self.unneeded.column(MODIFIED))
        marks = ((due, Mark.of(mark)) for due, *mark in self.unneeded)
        oldest = islice((m for m in marks if cutoff is None or m[1].file.modified_ms <= cutoff), MOST)
        kept = (mark for due, mark in oldest if wanted(due, mark))
        self.seen.mark_store.write(self.seen.table.metadata.table_uuid, kept, newest)

    def _trash(self) -> None:
        if self._is_large or not self.report.due.files:
            return
        try:
            self._trash_due()
        finally:
            if len(self.gone) < self.report.due.files:  # what stayed goes at the next pass
                self._write_marks(lambda due, mark: not due or digest(mark.file.place) not in self.gone)

    def _trash_due(self) -> None:
        seen, resumed = self.seen, self._resumed()
        for root in (seen.site.receipts_of(self.report.identifier), *seen.where.roots):
            dues = self._due(root)
            while batch := list(islice(dues, BATCH)):
                seen.read_again()
                self._put(root, [mark for mark in batch if self._may_still_go(mark, resumed)])

    def _put(self, root: Place, marks: list[Mark]) -> None:
        if not marks:
            return
        trash = self.seen.site.trash(self.seen.table, self.report.identifier, root)
        self.gone.update(digest(mark.file.place) for mark in marks)
        done = trash.put([Due(mark.file, mark.why, mark.first_seen_ms) for mark in marks], self.run_id)
        self.report.trashed.files += done.files
        self.report.trashed.size += done.size
        self.report.refused += done.kept
        self.gone.difference_update(digest(kept.place) for kept in done.kept)

    def _due(self, root: Place) -> Iterator[Mark]:
        marks = (Mark.of(mark) for due, *mark in self.unneeded if due)
        return (mark for mark in marks if mark.file.place.is_within(root))

    def _resumed(self) -> set[str]:
        """Returns the runs that hold their files by now and did not when the table was read."""
        seen = self.seen
        states = states_of(seen.site.chains(self.tokens), seen.newest_ms, seen.now_ms, seen.periods)
        return {token for token in self.tokens if states[token] in HELD}

    def _may_still_go(self, mark: Mark, resumed: set[str]) -> bool:
        place = mark.file.place
        is_live = place in self.seen.live or crc_owner(place) in self.seen.live
        if is_live or mark.token in resumed:
            reason = "became live" if is_live else f"the run {mark.token} was resumed"
            self.report.refused.append(Kept(place, f"{reason} since it was listed"))
        return not (is_live or mark.token in resumed)

    def _purge(self) -> None:
        seen, purged = self.seen, self.report.purged
        for trash in seen.site.trashes(self.report.identifier, seen.table):
            done = trash.purge(seen.now_ms)
            purged.files, purged.size = purged.files + done.files, purged.size + done.size
            self.report.refused += done.kept


def _nth_smallest(count: int, values: Iterator[int]) -> int | None:
    """Returns the ``count``-th smallest of the values; None if there are no more than ``count``."""
    heap: list[int] = []  # the smallest values, negated: heapq finds the smallest, and the largest is wanted
    more = False
    for value in values:
        if len(heap) < count:
            heappush(heap, -value)
        else:
            heappushpop(heap, -value)
            more = True
    return -heap[0] if more else None
