"""Runs that read on and die between two steps: ``python -m tests.support.change_reading_deaths STAGE [TABLE]``.
The process is killed for real where it is one of its own; a campaign of many deaths raises Died in its place."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pkgutil import resolve_name
from typing import Any
from unittest.mock import patch

import dagster as dg

from lakehouse_assets.commit import publish as publishing
from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.modes import Append
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.inputs import hook as inputs
from lakehouse_assets.run import report, table_run
from lakehouse_assets.run.plan import Plans
from tests.conftest import Lake
from tests.support import change_reading_steps as steps


class Died(BaseException):
    """A run's process is gone: nothing of it may go on."""


class Stage(StrEnum):
    """The step that a run does not come to."""

    PLANNED = "to write its plan"
    STARTED = "to start its worker"
    READ = "to read, in its worker"
    STAGED = "to audit what is staged"
    AUDITED = "to publish"
    COMMITTED = "to hear of its commit"
    KNOWN = "to tag its input"
    TAGGED = "to report"


def log(step: str = "followed", **options: Any) -> Table:
    """``demo.log``: a row for each change of a row of demo.source."""
    return Table(
        **{
            "identifier": "demo.log",
            "columns": [column("n", "long"), column("text", "string"), column("change", "string")],
            "step": f"tests.support.change_reading_steps:{step}",
            "deps": [dg.AssetKey(["demo", "source"])],
            "write_mode": Append(),
        }
        | options
    )


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def raise_died() -> None:
    raise Died


@contextmanager
def doomed(stage: Stage, die: Callable[[], None]) -> Iterator[None]:
    """Has the next run die."""

    def instead(*_: Any, **__: Any) -> None:
        die()

    commit = publishing.LeanTransaction.commit_transaction

    def committed(transaction: Any) -> None:
        commit(transaction)
        die()

    match stage:
        case Stage.PLANNED:
            of = patch.object(Plans, "write", instead)
        case Stage.STARTED:
            of = patch.object(table_run.TableRun, "_stage", instead)
        case Stage.READ:
            of = patch.object(steps, "MEANWHILE", [die])
        case Stage.STAGED:
            of = patch.object(table_run, "audit", instead)
        case Stage.AUDITED:
            of = patch.object(table_run, "publish", instead)
        case Stage.COMMITTED:
            of = patch.object(publishing.LeanTransaction, "commit_transaction", committed)
        case Stage.KNOWN:
            of = patch.object(inputs, "keep_unread", instead)
        case Stage.TAGGED:
            of = patch.object(report, "materialized", instead)
    with of:
        yield


if __name__ == "__main__":
    declared = resolve_name(sys.argv[2]) if sys.argv[2:] else log
    with dg.DagsterInstance.get() as instance, doomed(Stage(sys.argv[1]), kill):
        Lake(read_settings(), instance).run(declared())
