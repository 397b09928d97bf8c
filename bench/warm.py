"""Local workers in three ways: cold (each chunk starts Python and Java), warm (a fork server's JVM stays), inline (in
the run's process). One day of nyc.flights in a process that stays and from the shell, and the whole pipeline."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from bench.context import Bench, BenchError
from bench.report import Section, Spread, Verdict, at_most
from lakehouse_assets.domains.nyc.tables import flights
from lakehouse_assets.environment.machine import resident_bytes
from lakehouse_assets.extensions.fork_server import folders

COLD, WARM, INLINE = "cold", "warm", "inline"
FIRST, THERE = "warm, no worker there yet", "warm, a worker there"
MODES: dict[str, dict[str, str]] = {
    COLD: {"LAKEHOUSE_WORKER_IDLE": "PT0S"},
    WARM: {"LAKEHOUSE_WORKER_IDLE": "PT5M"},
    INLINE: {"LAKEHOUSE_COMPUTE": "inline"},
}
DAYS = [f"2013-07-{day:02d}" for day in range(1, 12)]
LAKEHOUSE = (sys.executable, "-m", "lakehouse_assets.cli")
IDLE_SECONDS = 60.0
TICKS = os.sysconf("SC_CLK_TCK")


def measure(bench: Bench) -> list[Section]:
    """Four sections: a day in a process that stays, a day from the shell, the pipeline, an idle worker."""
    return [_in_process(bench), _from_shell(bench), _pipeline(bench), _idle(bench)]


def _environment(bench: Bench, home: str, mode: str) -> dict[str, str]:
    return bench.environment(home) | MODES[mode]


def _in_process(bench: Bench) -> Section:
    """The first run of each process is left out: it imports, and starts the worker that the others use."""
    days = DAYS[: bench.times(len(DAYS), quick=2)]
    found, parts = {}, {}
    for mode in MODES:
        command = ("-m", "bench.dagster_run", flights.identifier, *days)
        answer = bench.python(*command, env=_environment(bench, f"stays-{mode}", mode))
        if failed := [line["failure"] for line in answer.lines if line["failure"]]:
            raise BenchError(f"{len(failed)} of {len(days)} runs failed: {'; '.join(failed)}")
        found[mode] = Spread.of([line["green"] for line in answer.lines[1:]])
        parts[mode] = [Spread.of([line[part] for line in answer.lines[1:]]) for part in ("stage", "publish")]
    _stop(bench, "stays-warm")
    limits = [
        at_most("warm, a day takes at most 1.5 s", found[WARM].median, 1.5, " s"),
        _share("of the time of a cold worker", found[WARM], found[COLD], 0.12),
    ]
    rows = [(mode, spread, *parts[mode], f"{spread.median / found[COLD].median:.2f}") for mode, spread in found.items()]
    title = f"One day of nyc.flights, a run of its own, in a process that stays; {len(days) - 1} runs"
    header = ("", "seconds, RUN_START to RUN_SUCCESS", "of them in the worker", "publishing", "of cold")
    return Section(title, header, rows, limits)


def _from_shell(bench: Bench) -> Section:
    turns = bench.times(5)
    seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
    cpu: dict[str, list[float]] = {mode: [] for mode in MODES}
    _run_day(bench, WARM, DAYS[0])
    for turn in range(turns):
        for mode in MODES:
            before = _busy()
            seconds[mode].append(_run_day(bench, mode, DAYS[turn]))
            cpu[mode].append(_busy() - before)
    _stop(bench, "shell-warm")
    wall, used = ({mode: Spread.of(values) for mode, values in of.items()} for of in (seconds, cpu))
    limits = [
        at_most("warm, the command takes at most 4 s", wall[WARM].median, 4.0, " s"),
        _share("of the time of a cold worker", wall[WARM], wall[COLD], 0.25),
        at_most("warm, at most 4.5 s of CPU, of all processes", used[WARM].median, 4.5, " s"),
    ]
    rows = [(mode, wall[mode], used[mode], f"{wall[mode].median / wall[COLD].median:.2f}") for mode in MODES]
    title = f"`lakehouse run nyc.flights --partitions DAY`; {turns} times, alternating"
    return Section(title, ("", "seconds", "CPU seconds of the machine", "of cold"), rows, limits)


def _run_day(bench: Bench, mode: str, day: str) -> float:
    command = (*LAKEHOUSE, "run", flights.identifier, "--partitions", day)
    return bench.command(command, env=_environment(bench, f"shell-{mode}", mode)).seconds


def _pipeline(bench: Bench) -> Section:
    """Each time on an empty home, but for the one that follows a run and finds its workers."""
    turns = bench.times(3)
    seconds: dict[str, list[float]] = {name: [] for name in (COLD, INLINE, FIRST, THERE)}
    for turn in range(turns):
        runs = {COLD: ("cold", COLD), INLINE: ("inline", INLINE), FIRST: ("warm", WARM), THERE: ("warm", WARM)}
        for name, (home, mode) in runs.items():
            seconds[name].append(_run_all(bench, f"{home}-{turn}", mode))
        _stop(bench, f"warm-{turn}")
    found = {name: Spread.of(values) for name, values in seconds.items()}
    limits = [
        _share("of the time of cold workers, none there yet", found[FIRST], found[COLD], 0.4),
        _share("of the time of cold workers, one there", found[THERE], found[COLD], 0.25),
    ]
    rows = [(name, spread, f"{spread.median / found[COLD].median:.2f}") for name, spread in found.items()]
    return Section(
        f"`lakehouse run`, seven tables, all of 2013; {turns} times", ("", "seconds", "of cold"), rows, limits
    )


def _run_all(bench: Bench, home: str, mode: str) -> float:
    env = _environment(bench, home, mode)
    del env["LAKEHOUSE_LANDING"]  # filling the drop zone is the pipeline's first asset
    return bench.command((*LAKEHOUSE, "run", "--domain", "nyc"), env=env).seconds


def _idle(bench: Bench) -> Section:
    _run_day(bench, WARM, DAYS[0])
    (worker,) = folders.alive(bench.home / "shell-warm" / folders.WORKERS)
    pids = (worker.about.pid, worker.about.jvm)
    time.sleep(IDLE_SECONDS if not bench.quick else 1)  # Java compiles what was hot last
    before = sum(map(_cpu, pids))
    time.sleep(IDLE_SECONDS if not bench.quick else 1)
    used, size = sum(map(_cpu, pids)) - before, sum(map(resident_bytes, pids)) / 2**20
    _stop(bench, "shell-warm")
    limits = [
        at_most("an idle worker takes at most 900 MiB", size, 900, " MiB"),
        at_most("and 0.1 s of CPU a minute", used, 0.1, " s"),
    ]
    return Section("An idle worker", ("MiB in RAM", "CPU seconds a minute"), [(f"{size:.0f}", f"{used:.2f}")], limits)


def _share(of: str, found: Spread, cold: Spread, limit: float) -> Verdict:
    return at_most(f"at most {limit} {of}", found.median / cold.median, limit, " x")


def _stop(bench: Bench, home: str) -> None:
    for worker in folders.alive(bench.home / home / folders.WORKERS):
        worker.end()


def _busy() -> float:
    """Returns the seconds in which the machine's processors worked, since its start."""
    user, nice, system, *_ = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system) / TICKS


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS
