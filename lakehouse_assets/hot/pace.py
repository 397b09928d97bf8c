"""Decides when a table's source is moved, and what is to be said of how far behind it is.

Pure functions of numbers; the sensors that act on them are in source_sensors.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import dagster as dg

from lakehouse_assets.sources.row_source import Lag, RowSource, SourceState

FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 60.0, 3600.0
"""How long a source is left alone after the first failed run, then twice as long each time, and at most."""
NEAR = 0.5
"""The share of a topic's retention that the oldest record may wait before it is a warning."""
LONG_WRITER_SECONDS = 300.0
"""How long a transaction may write before it is a warning: it keeps all later rows from being moved."""


def is_due(source: RowSource, lag: Lag, now: datetime) -> bool:
    """Tells whether a run is worth its commit: there is a floor's worth of rows, or the oldest has waited long enough.

    Without a row that can be read, as in a range of aborted records, nothing waits.
    """
    return lag.rows >= source.floor or (lag.oldest is not None and now - lag.oldest >= source.latency)


def wait_after(failures: int) -> float:
    """Returns for how many seconds a source is left alone. failures: of runs, one after the other."""
    return min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2 ** (failures - 1)) if failures else 0.0


@dataclass(frozen=True)
class SourceLook:
    """Holds what a tick sees of one table's source."""

    state: SourceState
    lag: Lag
    writing: float = 0.0
    """For how many seconds the source's oldest open transaction has been writing; 0 where that is not known."""
    writer: str = ""
    """Which transaction that is."""
    blind_role: str = ""
    """The role that looks, if it can't see the transactions of others."""
    advice: Sequence[str] = ()
    """What should be changed at the source, in clauses."""

    def metadata(self, now: datetime) -> dict[str, Any]:
        """Returns the numbers that the source's asset shows, each of which Dagster plots."""
        waiting = [at for at in (self.lag.oldest, self.lag.held_since) if at]
        age = (now - min(waiting)).total_seconds() if waiting else 0.0
        return {
            "depth": self.lag.depth,
            "lag_rows": self.lag.rows + self.lag.held,
            "lag_seconds": round(max(0.0, age), 1),
            "held_back": self.state.held_back,
            "oldest_writer_seconds": round(self.writing, 1),
        }


def verdict(source: RowSource, look: SourceLook, now: datetime) -> dg.AssetCheckResult:
    """Says whether the source keeps what is not moved, and whether something keeps it from being moved.

    The text has no number that grows from tick to tick, as the sensor tells what changed in it: how long something
    lasts already is in SourceLook.metadata().
    """
    state, lag, blind = look.state, look.lag, look.blind_role
    unseen = f". {blind} does not see the transactions of others: GRANT pg_read_all_stats TO {blind}" if blind else ""
    age = (now - lag.oldest).total_seconds() if lag.oldest else 0.0
    if state.retention and age > NEAR * state.retention.total_seconds():
        return warning(
            f"{source.name} keeps records for {state.retention.total_seconds():,.0f} s, and the oldest one that is not "
            f"moved is older than {NEAR:.0%} of that: materialize the table, or raise retention.ms"
        )
    if state.held_back and look.writing > LONG_WRITER_SECONDS:
        return warning(
            f"a transaction ({look.writer}) has been writing for more than {LONG_WRITER_SECONDS:,.0f} s and keeps what "
            f"came after it from being moved: end it{unseen}"
        )
    if lag.held_since and (now - lag.held_since).total_seconds() > LONG_WRITER_SECONDS:
        return warning(
            f"{source.name} has rows that were written more than {LONG_WRITER_SECONDS:,.0f} s ago and can't be moved, "
            f"since an older transaction is open: see pg_stat_activity and pg_prepared_xacts{unseen}"
        )
    if look.advice:
        return warning(f"{source.name}: {'; '.join(look.advice)}")
    return dg.AssetCheckResult(passed=True, description=f"{source.name} has all rows that are not moved{unseen}")


def warning(text: str) -> dg.AssetCheckResult:
    """Returns the result of a check that failed, and that needs nobody at once."""
    return dg.AssetCheckResult(passed=False, severity=dg.AssetCheckSeverity.WARN, description=text)
