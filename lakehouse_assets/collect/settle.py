"""Finds out by looking, and writes down, what a run took from a table if the run ended before it could say.

Nothing is moved: what such a run had decided may be wrong by now.
"""

from __future__ import annotations

from lakehouse_assets.collect.bins import BinOf
from lakehouse_assets.collect.ledger import Ledger

UNFINISHED = "the run ended before it was taken"


def settle(ledger: Ledger, bin_of: BinOf) -> None:
    """Completes the ledger. The run may be at work still: its own record, when it comes, replaces this one."""
    for recorded in ledger.unfinished():
        batch = recorded.batch
        is_held = bin_of(batch).is_held
        kept = {n: UNFINISHED for n, entry in enumerate(batch.entries) if not is_held(entry)}
        ledger.taken(batch, kept, "found afterwards")
