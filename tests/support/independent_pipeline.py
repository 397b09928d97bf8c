"""A code location of two assets that depend on nothing, and one that depends on the first of them. No tests here.

MEETS: a folder in which the first two wait for each other. STAYS: a folder; they note there that they have begun, and
stay until they are ended. FAILS or DIES: the name of the one that does.
"""

import os
import signal
import time
from pathlib import Path

import dagster as dg


def _work(name: str) -> None:
    if folder := os.environ.get("MEETS"):
        Path(folder, name).touch()
        while not all(Path(folder, other).exists() for other in ("one", "two")):
            time.sleep(0.05)
    if folder := os.environ.get("STAYS"):
        Path(folder, name).touch()
        time.sleep(600)
    if os.environ.get("FAILS") == name:
        raise dg.Failure(f"{name} has no rows")
    if os.environ.get("DIES") == name:
        os.kill(os.getpid(), signal.SIGKILL)


@dg.asset(key=["free", "one"])
def one() -> None:
    _work("one")


@dg.asset(key=["free", "two"])
def two() -> None:
    _work("two")


@dg.asset(key=["free", "after_one"], deps=[one])
def after_one() -> None: ...


defs = dg.Definitions([one, two, after_one], executor=dg.in_process_executor)
