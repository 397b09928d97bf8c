"""Hand-offs in processes of their own, killed by SIGKILL at any call to AWS; what they leave is the test's business.
A fork server has all imported, so that a process takes no time to begin."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from lakehouse_assets.maintenance.collect.needed import Chain
from tests.support.aws_wire import Wire
from tests.support.hand_offs import HandOffLake

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.support.killed_hand_off"])


def killed(lake: HandOffLake, wire: Wire, token: str, at: int, *, landed: bool, **options: Any) -> bool:
    """A process hands off, and dies at its nth call: before it reaches AWS, or once it is done and not answered.

    Returns whether it died; else it ended well, with fewer calls.
    """
    begin = CONTEXT.Event()
    arguments = (lake.moto, lake.clock.time, dict(lake.runs), token, options, dict(os.environ), begin)
    process = CONTEXT.Process(target=_hand_over, args=arguments)
    process.start()

    def kill(number: int) -> None:
        if number == at and process.pid:
            os.kill(process.pid, signal.SIGKILL)
            if not landed:
                raise ConnectionError("killed before it was sent")

    wire.calls.clear()
    setattr(wire, "after" if landed else "before", kill)
    begin.set()
    process.join(120)
    wire.before = wire.after = lambda number: None
    assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
    return process.exitcode != 0


def _hand_over(
    moto: str,
    time: datetime,
    runs: Mapping[str, Chain],
    token: str,
    options: dict[str, Any],
    environment: dict[str, str],
    begin: Any,
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    lake = HandOffLake(moto, runs=dict(runs))
    lake.clock.time = time
    hand_over = lake.hand_over(token, **options)
    begin.wait()
    hand_over.run()
