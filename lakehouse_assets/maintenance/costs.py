"""Estimates what maintenance costs: seconds, vCPU-hours and USD by engine, from bytes and files.

Pure. Prices are the launchers'; how these estimates are corrected by what was found is in memory.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lakehouse_assets.health.gain import MIB
from lakehouse_assets.maintenance.planned import Cost, Engine
from resources.computes import Ecs, Emr, EmrServerless, find_compute
from resources.launchers.prices import EC2_VCPU, EMR_SERVERLESS, EMR_SHARE, FARGATE, FARGATE_SPOT, Price
from resources.settings import Settings

HOUR = 3600.0
RUN_VCPUS, RUN_GIB = 0.5, 2.0
"""The size of a run's process in production (deploy/run-task.json)."""
WORKER_VCPUS, WORKER_GIB = 2.0, 8.0
"""The size of a worker whose environment says nothing else (deploy/worker-task.json)."""


@dataclass(frozen=True)
class PricedMachine:
    """The machine that an action keeps busy."""

    vcpus: float
    """vCPUs that an action keeps busy."""
    usd: float
    """The price of all of them for an hour."""


@dataclass(frozen=True)
class Rate:
    """The time that an engine takes, and the machine that it takes it on."""

    machine: PricedMachine
    start: float
    """Seconds before the first byte is rewritten, once for each action."""
    speed: float
    """Bytes a second, with the proof."""
    each: float
    """Seconds for each file that is read."""

    def cost(self, size: int, files: int, ratio: float = 1.0) -> Cost:
        """Returns the cost of rewriting so many bytes in so many files, without the start.

        ratio: how many times longer than estimated such work took before.
        """
        seconds = (size / self.speed + files * self.each) * ratio
        return self.of_seconds(seconds, size)

    def of_seconds(self, seconds: float, size: int = 0) -> Cost:
        """Returns the cost of so many seconds on the machine. size: bytes that are rewritten."""
        hours = seconds / HOUR
        return Cost(size, seconds, hours * self.machine.vcpus, hours * self.machine.usd)


Rates = Mapping[Engine, Rate]


def rates(settings: Settings) -> Rates:
    """Returns what the engines cost in this environment.

    Without a JVM, 22 MB in 200 files take about 1.5 s on a core of ours, proof included (docs/measured.md). Spark's
    start is a task's with its image and a cold JVM; its speed with the proof was seen on two cores. Both are only where
    estimates begin: what actions really took corrects them.
    """
    local = not find_compute(settings.compute).remote
    return {
        Engine.PYTHON: Rate(_run_machine(local), start=0.2, speed=16 * MIB, each=0.002),
        Engine.SPARK: Rate(_worker_machine(settings), start=15.0 if local else 75.0, speed=16 * MIB, each=0.01),
    }


def _run_machine(local: bool) -> PricedMachine:
    """Returns the machine of the run's own process.

    It costs nothing where it is somebody's own; elsewhere it is a Fargate task, as deploy/ has it. Runs of Dagster+
    cost about the same.
    """
    return PricedMachine(1.0, 0.0) if local else PricedMachine(RUN_VCPUS, FARGATE.usd(RUN_VCPUS, RUN_GIB))


def _worker_machine(settings: Settings) -> PricedMachine:
    match settings.computes.get(settings.compute):
        case Ecs(capacity=capacity, size=size):
            spot = set(capacity) == {"FARGATE_SPOT"}
            return _priced(FARGATE_SPOT if spot else FARGATE, size.vcpus, size.memory_gib)
        case EmrServerless():
            return _priced(EMR_SERVERLESS, None, None)
        case Emr():
            return PricedMachine(WORKER_VCPUS, WORKER_VCPUS * EC2_VCPU["m"][1] * (1 + EMR_SHARE))
        case _:
            return PricedMachine(WORKER_VCPUS, 0.0)


def _priced(price: Price, vcpus: float | None, gib: float | None) -> PricedMachine:
    vcpus, gib = vcpus or WORKER_VCPUS, gib or WORKER_GIB
    return PricedMachine(vcpus, price.usd(vcpus, gib))
