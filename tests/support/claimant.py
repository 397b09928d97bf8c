"""One of many processes that claim slots of a pool at once: ``python -m tests.support.claimant <run> <rounds> <many>``.
Prints the most that it ever saw hold one, itself included; the instance is DAGSTER_HOME's."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import dagster as dg

from lakehouse_assets.drive import slots


def main(run: str, rounds: int, many: int) -> int:
    slots.CLAIM_INTERVAL_SECONDS = 0.01
    home, most = Path(os.environ["DAGSTER_HOME"]), 0
    holders, ready = home / "holders", home / "ready"
    with dg.DagsterInstance.get() as instance:  # which takes seconds
        own = slots.Slots(instance, run, "step")
        (ready / run).touch()
        while len(list(ready.iterdir())) < many:  # else the first may be done before the last has begun
            time.sleep(0.01)
        patient_until = time.monotonic() + 20
        for chunk in range(rounds):
            while not own.claim(chunk):
                time.sleep(0.01)
            (holders / run).touch()
            for pause in (0.02, 0.0):  # others may come while it is held
                most = max(most, len(list(holders.iterdir())))
                time.sleep(pause)
            while most < 2 and time.monotonic() < patient_until:  # a claim takes longer than that on a busy machine
                most = max(most, len(list(holders.iterdir())))
                time.sleep(0.02)
            (holders / run).unlink()
            own.free(chunk)
    return most


if __name__ == "__main__":
    print(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
