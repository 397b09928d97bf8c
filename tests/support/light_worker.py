"""A worker without a JVM: stages its chunk by PyIceberg, stamps its start and end, and waits while it is held.
No Dagster here, as in the real one; the launcher that starts it is in pool_location.py."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dagster_pipes import open_dagster_pipes
from pyiceberg.io import load_file_io
from pyiceberg.utils.config import Config

from lakehouse_assets.wire.receipts import Receipt
from lakehouse_assets.wire.work import Assignment
from lakehouse_assets.worker.__main__ import end_with_parent
from tests.support.light_stage import stage

HOME = Path(os.environ["LAKEHOUSE_HOME"])
STAMPS = HOME / "stamps.jsonl"
HOLD = HOME / "hold"


def main() -> None:
    end_with_parent()
    with open_dagster_pipes() as pipes:
        assignment = Assignment.from_json(pipes.get_extra("work"))
        with _stamped(assignment):
            while _is_held(assignment):
                time.sleep(0.05)
            pipes.report_custom_message({"receipt": _stage(assignment).to_json()})


def _is_held(assignment: Assignment) -> bool:
    """Whether ``<home>/hold`` names one of its days, or none at all, which holds every worker."""
    if not HOLD.exists():
        return False
    days = HOLD.read_text().split()
    return not days or not set(days).isdisjoint(assignment.window.keys)


@contextmanager
def _stamped(assignment: Assignment) -> Iterator[None]:
    _stamp(assignment, 1)
    yield
    _stamp(assignment, -1)


def _stamp(assignment: Assignment, change: int) -> None:
    """A line: when (one clock for all processes of a machine), one worker more or less, which."""
    line = {"at": time.monotonic(), "change": change, "run": assignment.token, "chunk": assignment.chunk}
    with STAMPS.open("a") as stamps:
        stamps.write(json.dumps(line | {"pid": os.getpid()}) + "\n")


def _stage(assignment: Assignment) -> Receipt:
    keys = Config().get_catalog_config("stage") or {}  # its own, where the test's environment has some
    receipt = stage(assignment, keys, each=3, stage_seconds=0.0, worker="light worker")
    receipt.write(load_file_io({}, assignment.receipt), assignment.receipt)
    return receipt


if __name__ == "__main__":
    sys.exit(main())
