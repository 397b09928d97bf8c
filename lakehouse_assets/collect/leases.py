"""Decides the state of a run token, and which states hold the run's files. All of it is pure.

What is known of runs is read in run_states.py, which files are a run's in staged_files.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from lakehouse_assets.commit.tokens import KEEP, RESUMABLE
from lakehouse_assets.declare.table import LONGEST_WORKER


class RunState(StrEnum):
    """The state of a run token. The first two hold the run's files, the others don't."""

    ALIVE = "alive"
    RESUMABLE = "resumable"
    FINISHED = "finished"
    DEAD = "dead"


HELD = (RunState.ALIVE, RunState.RESUMABLE)


@dataclass(frozen=True)
class Chain:
    """The run at the head of a chain and all runs that resumed it, as Dagster knows them."""

    created_ms: int
    """The time when the head was created, by the clock of Dagster's storage."""
    unfinished: bool
    """Whether any run of the chain is not finished."""
    succeeded: bool
    """Whether any run of the chain has succeeded."""


@dataclass(frozen=True)
class Periods:
    """The periods for which the collector waits."""

    grace: timedelta = timedelta(days=3)
    """The time between the first sight of a file that nobody needs and its move to the trash."""
    unnamed: timedelta = LONGEST_WORKER + RESUMABLE
    """The age below which a file that no run names is kept: a worker may still report it, or a writer that is no part
    of this code location may still commit it. It is the longest worker's time and the time in which its run may be
    resumed."""
    unknown: timedelta = KEEP
    """The age beyond which a run that Dagster does not know is dead."""
    resumable: timedelta = RESUMABLE + timedelta(days=1)
    """The time in which a run may be resumed, and a day more: the clock of Dagster's storage may differ from the
    storage's."""

    @property
    def grace_ms(self) -> int:
        """The grace in milliseconds."""
        return _ms(self.grace)

    @property
    def unnamed_ms(self) -> int:
        """The age in milliseconds below which a file that no run names is kept."""
        return _ms(self.unnamed)


def state_of(chain: Chain | None, newest_ms: int, now_ms: int, periods: Periods) -> RunState:
    """Returns the state of a token.

    chain: None where Dagster does not know the run: it is another instance's, or was deleted. newest_ms: when the last
    of the run's files was written, by the storage's clock, as now_ms.
    """
    if chain is None:
        return RunState.DEAD if now_ms - newest_ms > _ms(periods.unknown) else RunState.ALIVE
    if chain.unfinished:
        return RunState.ALIVE
    if chain.succeeded:
        return RunState.FINISHED
    return RunState.DEAD if now_ms - chain.created_ms > _ms(periods.resumable) else RunState.RESUMABLE


def states_of(
    chains: Mapping[str, Chain], newest_ms: Mapping[str, int], now_ms: int, periods: Periods
) -> dict[str, RunState]:
    """Returns the state of every token that has files."""
    return {token: state_of(chains.get(token), newest, now_ms, periods) for token, newest in newest_ms.items()}


def _ms(period: timedelta) -> int:
    return period // timedelta(milliseconds=1)
