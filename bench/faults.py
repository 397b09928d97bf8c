"""Faults of workers on AWS, caused on purpose; twins, lost and doubled chunks, and workers left running are counted.
The services are fakes over HTTP that run tests/support/tiny_worker.py; what else must hold for a fault is in tests."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bench.context import Bench
from bench.report import Section, Verdict
from lakehouse_assets.drive.slots import POOL
from lakehouse_assets.environment.machine import cores
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.extensions.aws import ecs
from lakehouse_assets.run.progress import listening
from tests.conftest import failure_text
from tests.support.deaths import DAYS, Stage, killed, resumed
from tests.support.driven import SITES, tiny_site
from tests.support.fakes.agent import Process
from tests.support.fakes.wire import Fault
from tests.support.faults import FaultyLake, Signs, from_failure, rows_by_day, tiny, wait_for
from tests.support.instances import light_instance
from tests.support.proxy import Proxy, Trouble, Weather, proxy
from tests.support.servers import SeaweedFS, seaweedfs

ROWS_A_DAY = 3
GREEN = ""


@dataclass
class Setup:
    """What one run has around it. wire: the proxy between S3 and the run with its workers. stack: closed at the end.
    table: its identifier; the run has a worker for each of tests.support.deaths.DAYS."""

    site: Any  # one of tests.support.driven.SITES: what it can do differs
    lake: FaultyLake
    table: str
    wire: Proxy
    stack: ExitStack

    @property
    def signs(self) -> Signs:
        return Signs(self.lake)

    def missed(self) -> bool:
        """Whether there was a fault on the wire that no request met."""
        return self.wire.trouble is not None and not self.wire.trouble.hits


@dataclass(frozen=True)
class Case:
    """A fault. cause: called as soon as all workers run, or before the run where ``early``. message: part of the failed
    run's message; GREEN where the run recovers by itself. workers: how many the run starts, and the re-execution of a
    failed run after the fault."""

    fault: str
    workers: int
    cause: Callable[[Setup], object] = lambda setup: None
    message: str = GREEN
    early: bool = False
    stage: Stage | None = None


def _throttled(setup: Setup) -> None:
    for operation in (setup.site.asks, POLLED[setup.site.asks]):
        setup.site.service.fail(operation, Fault("ThrottlingException", "Rate exceeded"), times=3)


def _unknown(setup: Setup) -> None:
    for _, process in setup.site.workers():
        process.kill()
    setup.site.ecs.forget()


def _answer_lost(setup: Setup) -> None:
    setup.site.service.fail(setup.site.asks, Fault("InternalFailure", "", 500, done=True), times=2)


def _leave_nothing(setup: Setup) -> None:
    (setup.signs.home / "leave").write_text(DAYS[-1])


def _slow_down(setup: Setup) -> None:
    setup.wire.trouble = Trouble(Weather.SLOW_DOWN, _writes_receipt, 20.0)


def _network_lost(setup: Setup) -> None:
    """The first worker alone loses its connection for good, before its receipt is written."""
    lost = setup.stack.enter_context(proxy(setup.wire.uri))
    lost.trouble = Trouble(Weather.CUT, _writes_receipt)
    way = {"AWS_ENDPOINT_URL_S3": lost.uri, "PYICEBERG_CATALOG__LAKE__S3__ENDPOINT": lost.uri}
    setup.site.ecs.hosts.append({**way, "TINY_RETRIES": "3"})


def _writes_receipt(method: str, path: str) -> bool:
    return method == "PUT" and re.search(r"/\d{5}\.json", path) is not None


POLLED = {"RunTask": "DescribeTasks", "AddJobFlowSteps": "ListSteps", "StartJobRun": "ListJobRuns"}
NOT_PLACED = "Capacity is unavailable at this time. Please try again later"
NO_INTERFACE = "Timeout waiting for network interface provisioning to complete."
THROTTLED = Case("throttling", 2, _throttled, early=True)
# What the poll loop does alike for all services is measured on ECS alone.
ON_EMR = (
    Case("cancelled in the console", 4, lambda setup: setup.site.cancel(), "was cancelled"),
    Case("answer lost", 2, _answer_lost, early=True),
    THROTTLED,
    *(Case(f"SIGKILL: {stage}", 2, stage=stage) for stage in (Stage.UNHEARD, Stage.HEARD)),
)
CASES: Mapping[str, tuple[Case, ...]] = {
    "ecs": (
        Case("Spot interruption", 4, lambda setup: setup.site.interrupt()),
        Case("TaskFailedToStart", 3, lambda setup: setup.site.ecs.start_failures.append(NO_INTERFACE), early=True),
        Case("no capacity", 2, lambda setup: setup.site.ecs.refusals.append(NOT_PLACED), early=True),
        Case("RESOURCE:ENI", 2, lambda setup: setup.site.ecs.refusals.append("RESOURCE:ENI"), early=True),
        Case("lost, then MISSING", 4, _unknown),
        Case("OutOfMemory", 4, lambda setup: setup.site.ecs.run_out_of_memory(), "ran out of memory"),
        Case("stopped in the console", 4, lambda setup: setup.site.cancel(), "was stopped by a person"),
        THROTTLED,
        Case("exit 0 without a receipt", 3, _leave_nothing, "left no proof", early=True),
        Case("S3 answers 503 SlowDown for 20 s", 2, _slow_down, early=True),
        Case("a worker loses its network", 3, _network_lost, early=True),
        Case("error in the step", 3, lambda setup: setup.signs.fail(DAYS[-1]), "KeyError: 'carrier'", early=True),
        *(Case(f"SIGKILL: {stage}", 2, stage=stage) for stage in Stage),
    ),
    "emr": (
        Case("cluster terminated under its steps", 4, lambda setup: setup.site.interrupt()),
        *ON_EMR,
    ),
    "emr_serverless": (
        Case("capacity lost under its jobs", 4, lambda setup: setup.site.interrupt()),
        *ON_EMR,
    ),
    "emr_eks": (
        Case("drivers evicted from their nodes", 4, lambda setup: setup.site.interrupt()),
        *ON_EMR,
    ),
}
NAMES = [(compute, case.fault) for compute, cases in CASES.items() for case in cases]


@dataclass(frozen=True)
class Outcome:
    """The outcome of one run, or the sum of several. requested, started: workers. needed: how many workers the fault
    makes necessary. twins: pairs of workers of one chunk alive at once. lost, doubled: chunks. left: workers that still
    run at the end. unexpected: runs that did not end as they should."""

    runs: int
    requested: int
    started: int
    needed: int
    twins: int
    lost: int
    doubled: int
    left: int
    unexpected: int

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(*(mine + theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True)))

    def __str__(self) -> str:
        return ", ".join(f"{value} {name}" for name, value in vars(self).items())


def measure(bench: Bench) -> list[Section]:
    """One section. The cases are divided among as many processes as there are cores."""
    times = bench.times(2)
    shares = max(2, cores())
    with ThreadPoolExecutor(shares) as pool:
        answers = [pool.submit(_share, bench, times, share, shares) for share in range(shares)]
    lines = [line for answer in answers for line in answer.result()]
    by_name = {
        name: sum((Outcome(**line["found"]) for line in lines if (line["compute"], line["fault"]) == name), ZERO)
        for name in NAMES
    }
    every = sum(by_name.values(), ZERO)
    strays = Counter((line["compute"], line["fault"], line["ended"]) for line in lines if line["found"]["unexpected"])
    return [
        Section(
            f"Faults of workers on AWS, each {times} times: runs of {len(DAYS)} chunks, a worker each",
            (
                "service: fault",
                "runs",
                "workers requested",
                "started (needed)",
                "twins",
                "chunks lost",
                "chunks doubled",
                "left running",
                "ended as expected",
            ),
            [_row(f"{compute}: {fault}", found) for (compute, fault), found in by_name.items()],
            [
                Verdict(f"every fault caused {times} times", f"{every.runs}", every.runs == times * len(NAMES)),
                Verdict(
                    "no twin, no chunk lost or doubled, nothing left running, no worker too many",
                    str(every),
                    (every.twins, every.lost, every.doubled, every.left) == (0, 0, 0, 0)
                    and all(found.started == found.needed for found in by_name.values()),
                ),
                Verdict("every run ended as it should", f"{every.unexpected} that did not", not every.unexpected),
            ],
            [
                "As expected: where a worker is lost or refused, the run ends well; where the run is killed, its "
                "re-execution does; an error of the step, lack of memory or a person's cancelling fails the run with a "
                "message that says so, and its re-execution ends well when the fault is over.",
                "Chunks are counted by the table's rows. A twin: two workers of one chunk alive at once. A refused or "
                "repeated request makes more requests than workers.",
                *(f"{compute}: {fault}: `{ended}`" for compute, fault, ended in strays),
            ],
        )
    ]


ZERO = Outcome(*[0] * 9)


def _row(name: str, found: Outcome) -> tuple[object, ...]:
    started = f"{found.started} ({found.needed})"
    numbers = (found.twins, found.lost, found.doubled, found.left)
    return (name, found.runs, found.requested, started, *numbers, f"{found.runs - found.unexpected} of {found.runs}")


def _share(bench: Bench, times: int, share: int, shares: int) -> list[dict[str, Any]]:
    folder = bench.home / f"faults-{share}"
    return bench.python("-m", "bench.faults", folder, times, share, shares, env=bench.environment(folder.name)).lines


def main(folder: Path, times: int, share: int, shares: int) -> None:
    """Every ``shares``-th case from ``share`` on: a line of JSON for each run of it."""
    cases = [(compute, case) for compute in SITES for case in CASES[compute]][share::shares]
    with seaweedfs() as weed:
        for compute, case in cases:
            for n in range(times):
                name = f"{compute}_{CASES[compute].index(case)}_{n}"
                found, ended = _once(compute, case, weed, folder / f"{share}_{name}")
                line = {"compute": compute, "fault": case.fault, "found": asdict(found), "ended": ended}
                print(json.dumps(line), flush=True)


def _once(compute: str, case: Case, weed: SeaweedFS, folder: Path) -> tuple[Outcome, str]:
    with _setup(compute, weed, folder) as setup:
        expected, ended = _killed(setup, case) if case.stage else _run(setup, case)
        workers = [process for _, process in setup.site.workers()]
        left = sum(not _ends(process) for process in workers)
        rows = rows_by_day(setup.lake, tiny(identifier=setup.table))
        found = Outcome(
            runs=1,
            requested=setup.site.service.calls[setup.site.asks],
            started=len(workers),
            needed=case.workers,
            twins=_twins(setup, workers),
            lost=sum(rows.get(day, 0) < ROWS_A_DAY for day in DAYS),
            doubled=sum(rows.get(day, 0) > ROWS_A_DAY for day in DAYS),
            left=left,
            unexpected=not expected or setup.missed(),
        )
    return found, ended


def _killed(setup: Setup, case: Case) -> tuple[bool, str]:
    assert case.stage
    well = resumed(setup.lake, setup.table, killed(setup.lake, setup.site, setup.table, case.stage))
    return well, "well" if well else "the run that went on failed"


def _run(setup: Setup, case: Case) -> tuple[bool, str]:
    """Whether the run, and its re-execution when the fault is over, ended as they should; and how the run ended."""
    if case.early:
        case.cause(setup)
    else:
        setup.signs.hold(*DAYS)
    table = tiny(identifier=setup.table)
    done: list[object] = []

    def watch(_: object) -> None:
        if not case.early and not done and len(setup.signs.started()) == len(DAYS):
            done.append(case.cause(setup))
            setup.signs.hold()

    with listening(watch):
        first = setup.lake.run(table, DAYS[0], DAYS[-1])
    if first.success:
        return not case.message, "well"
    message = failure_text(first)
    setup.signs.fail()
    (setup.signs.home / "leave").unlink(missing_ok=True)
    again = setup.lake.run(table, DAYS[0], DAYS[-1], tags=from_failure(first.run_id))
    return bool(case.message) and case.message in message and again.success, " ".join(message.split())[:200]


@contextmanager
def _setup(compute: str, weed: SeaweedFS, folder: Path) -> Iterator[Setup]:
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        wire = stack.enter_context(proxy(weed.s3_endpoint))
        site = stack.enter_context(tiny_site(compute, replace(weed, s3_endpoint=wire.uri), folder))
        stack.enter_context(patch.object(ecs, "MISSING_SECONDS", 0.5))
        instance = stack.enter_context(light_instance(folder / "dagster"))
        instance.event_log_storage.set_concurrency_slots(POOL, 4)
        settings = read_settings()
        settings.home.mkdir()
        yield Setup(site, FaultyLake(settings, instance), f"faults.t_{folder.name}", wire, stack)


def _ends(process: Process | None) -> bool:
    try:
        wait_for(lambda: process and process.look() == "ended", seconds=10)
    except AssertionError:
        return False
    return True


def _twins(setup: Setup, workers: list[Process]) -> int:
    """Pairs of workers that noted the same day and were alive at once."""
    days = dict(zip(setup.signs.workers(), setup.signs.started(), strict=True))
    alive = [(days[p.pid], p.started_at or 0.0, p.ended_at or float("inf")) for p in workers if p and p.pid in days]
    return sum(one[0] == other[0] and one[1] < other[2] and other[1] < one[2] for one, other in combinations(alive, 2))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
