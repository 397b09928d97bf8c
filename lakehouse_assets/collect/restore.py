"""Brings files back to where they were: a run's, some folders', or all that the trash has of a table.

What is there by now is never overwritten; how a storage gives a file back is in the trash's files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

from lakehouse_assets.collect.bins import Back, BinOf, Kept
from lakehouse_assets.collect.ledger import Batch, Entry, Ledger
from lakehouse_assets.collect.links import folder_without_links, without_links
from lakehouse_assets.storage.place import Place

IS_BACK = frozenset(Back)


@dataclass(frozen=True)
class TrashSelection:
    """Selects what to bring back of a table: every file, or the files that meet all conditions."""

    run: str | None = None
    """The run that put them into the trash; None for any."""
    places: frozenset[Place] = frozenset()
    """Files, or folders with all that was below them; empty for any."""

    def has(self, batch: Batch, entry: Entry) -> bool:
        """Tells whether the file is meant."""
        if self.run not in (None, batch.run):
            return False
        file = without_links(entry.place)
        return not self.places or any(file.is_within(folder_without_links(place)) for place in self.places)


@dataclass(frozen=True)
class RestoreReport:
    """The result of bringing files back."""

    restored: int
    """The number of files that were brought back."""
    size: int
    """Their size in bytes."""
    there: int
    """The number of files that were there already, unchanged."""
    lost: tuple[Kept, ...]
    """The files that can't come back, with the reason."""


def total(reports: Sequence[RestoreReport]) -> RestoreReport:
    """Adds up the reports of several trashes."""
    lost = tuple(kept for report in reports for kept in report.lost)
    restored, size, there = (sum(getattr(r, name) for r in reports) for name in ("restored", "size", "there"))
    return RestoreReport(restored, size, there, lost)


def restore(ledger: Ledger, bin_of: BinOf, selection: TrashSelection) -> RestoreReport:
    """Brings back what is selected. Raises what the storage raises; what is back by then stays."""
    count: Counter[str] = Counter()
    lost: list[Kept] = []
    for recorded in reversed(ledger.read()):  # of two files of one name, the newer one comes back
        batch = recorded.batch
        chosen = [n for n in recorded.held() if selection.has(batch, batch.entries[n])]
        for n, told in zip(chosen, _give_back(ledger, bin_of, batch, chosen), strict=True):
            entry = batch.entries[n]
            if told == Back.RESTORED:
                count.update(restored=1, size=entry.size)
            elif n not in (recorded.kept or ()):  # of a file that was never taken there is nothing to tell
                count.update(there=told == Back.THERE)
                lost += [Kept(entry.place, told)] if told != Back.THERE else []
    return RestoreReport(count["restored"], count["size"], count["there"], tuple(lost))


def _give_back(ledger: Ledger, bin_of: BinOf, batch: Batch, chosen: Sequence[int]) -> list[str]:
    told = bin_of(batch).give_back([batch.entries[n] for n in chosen])
    if back := [n for n, what in zip(chosen, told, strict=True) if what in IS_BACK]:
        ledger.restored(batch, back, uuid4().hex[:8])
    return told
