"""Deletes for good what is past its time: only from the trash, and only what the ledger says that it took.

How a storage does that is in the trash's files.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from lakehouse_assets.collect.bins import BinOf, Kept
from lakehouse_assets.collect.ledger import Entry, Ledger, Recorded
from lakehouse_assets.collect.refusals import REFUSED

LEDGER_LIFE = timedelta(days=90)
"""The time for which the ledger still tells of files that can't be brought back any more."""


@dataclass(frozen=True)
class PurgeReport:
    """The files that are gone for good."""

    files: int
    size: int
    """Their size in bytes."""
    kept: tuple[Kept, ...]
    """The files that should have gone and did not, with the reason."""


def purge(ledger: Ledger, bin_of: BinOf, now_ms: int) -> PurgeReport:
    """Deletes what can't be brought back any more, and forgets what nobody will ask for.

    now_ms: by the storage's clock. Raises what the storage raises; what is gone by then is gone.
    """
    gone: list[Entry] = []
    kept: list[Kept] = []
    for recorded in ledger.read():
        if recorded.batch.until_ms > now_ms:
            continue
        if not recorded.is_purged:
            purged, stayed = _purge(ledger, bin_of, recorded, now_ms)
            gone, kept = gone + purged, kept + stayed
        elif recorded.batch.until_ms + LEDGER_LIFE / timedelta(milliseconds=1) <= now_ms:
            ledger.forget(recorded.batch)
    return PurgeReport(len(gone), sum(entry.size for entry in gone), tuple(kept))


def _purge(ledger: Ledger, bin_of: BinOf, recorded: Recorded, now_ms: int) -> tuple[list[Entry], list[Kept]]:
    batch = recorded.batch
    taken = [n for n in recorded.held() if n not in (recorded.kept or ())]
    kept = bin_of(batch).destroy(batch, taken)
    stayed = [Kept(batch.entries[n].place, reason) for n, reason in kept.items()]
    if any(reason.startswith(REFUSED) for reason in kept.values()):  # tried again at the next pass, and counted then
        return [], stayed
    ledger.purged(batch, now_ms, kept)
    return [batch.entries[n] for n in taken if n not in kept], stayed
