"""When a run token is alive, resumable, finished or dead, and that the periods fit each other."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lakehouse_assets.commit.tokens import KEEP, RESUMABLE
from lakehouse_assets.declare.table import LONGEST_WORKER
from lakehouse_assets.maintenance.collect.needed import Chain, Periods, RunState, state_of

DAY = 24 * 3600 * 1000
NOW = 1_000 * DAY


def chain(days: float, *, unfinished: bool = False, succeeded: bool = False) -> Chain:
    return Chain(NOW - round(days * DAY), unfinished, succeeded)


@pytest.mark.parametrize(
    ("known", "newest", "expected"),
    [
        (chain(0), 0, RunState.RESUMABLE),
        (chain(14.9), 14, RunState.RESUMABLE),
        (chain(15.1), 0, RunState.DEAD),
        (chain(100, unfinished=True), 100, RunState.ALIVE),
        (chain(1, unfinished=True, succeeded=True), 1, RunState.ALIVE),
        (chain(1, succeeded=True), 0, RunState.FINISHED),
        (chain(100, succeeded=True), 100, RunState.FINISHED),
        (None, 29.9, RunState.ALIVE),
        (None, 30.1, RunState.DEAD),
    ],
)
def test_the_state_of_a_token(known: Chain | None, newest: float, expected: RunState) -> None:
    assert state_of(known, NOW - round(newest * DAY), NOW, Periods()) is expected


def test_a_token_outlives_what_its_run_left() -> None:
    periods = Periods()
    # Receipts die before tokens: else a resumed run that was published would be published again over newer rows.
    assert RESUMABLE < periods.resumable < KEEP <= periods.unknown
    # What no run names may belong to a worker that still runs for a run which is resumed on its last day.
    assert periods.unnamed >= LONGEST_WORKER + RESUMABLE
    assert periods.grace > timedelta(days=1), "clocks may be apart by a day"
