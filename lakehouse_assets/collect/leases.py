"""Whose lease holds what: the state of a run token, and what follows from it for the run's files. Pure.
What is known of runs is read in run_states.py, which files are a run's in staged_files.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from lakehouse_assets.commit.tokens import KEEP, RESUMABLE
from lakehouse_assets.declare.table import LONGEST_WORKER


class State(StrEnum):
    """Of a run token. Files of the first two are held, those of the others are not."""

    ALIVE = "alive"
    RESUMABLE = "resumable"
    FINISHED = "finished"
    DEAD = "dead"


HELD = (State.ALIVE, State.RESUMABLE)


@dataclass(frozen=True)
class Chain:
    """What Dagster knows of a run and of all that resumed it. created_ms: when the run at its head was created, by the
    clock of Dagster's storage. unfinished, succeeded: whether any of them is, or has."""

    created_ms: int
    unfinished: bool
    succeeded: bool


@dataclass(frozen=True)
class Periods:
    """How long the collector waits.

    grace: between the first sight of a file that nobody needs and its way into the trash. unnamed: the age below which
    a file that no run names belongs to a worker that may still report it, or to a writer that is no part of this: the
    longest worker, whose run may be resumed. unknown: the age from which a run that Dagster does not know is dead.
    resumable: how long a run may be resumed; its storage's clock and ours may be apart by a day.
    """

    grace: timedelta = timedelta(days=3)
    unnamed: timedelta = LONGEST_WORKER + RESUMABLE
    unknown: timedelta = KEEP
    resumable: timedelta = RESUMABLE + timedelta(days=1)

    @property
    def grace_ms(self) -> int:
        return _ms(self.grace)

    @property
    def unnamed_ms(self) -> int:
        return _ms(self.unnamed)


def state_of(chain: Chain | None, newest_ms: int, now_ms: int, periods: Periods) -> State:
    """The state of a token. chain: None where Dagster does not know the run: it is another instance's, or was deleted.
    newest_ms: of the run's files by the storage's clock, as now_ms."""
    if chain is None:
        return State.DEAD if now_ms - newest_ms > _ms(periods.unknown) else State.ALIVE
    if chain.unfinished:
        return State.ALIVE
    if chain.succeeded:
        return State.FINISHED
    return State.DEAD if now_ms - chain.created_ms > _ms(periods.resumable) else State.RESUMABLE


def states_of(
    chains: Mapping[str, Chain], newest_ms: Mapping[str, int], now_ms: int, periods: Periods
) -> dict[str, State]:
    """The state of every token that has files."""
    return {token: state_of(chains.get(token), newest, now_ms, periods) for token, newest in newest_ms.items()}


def _ms(period: timedelta) -> int:
    return period // timedelta(milliseconds=1)
