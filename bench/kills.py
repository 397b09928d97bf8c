"""Runs on warm workers, of which some process is killed at a random moment: rows are counted, and what stays behind.
The processes of the runs are kills_once.py's."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from bench.context import ROOT, Bench
from bench.kills_steps import DAYS, NOTES, ROWS, TABLE
from bench.report import Section, Verdict
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.machine import children_of
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.extensions.fork_server import folders

KILLS = 500
AT_ONCE = 2
IDLE_SECONDS = 5
LONGEST_SECONDS = 300.0
"""For a run to end: one that takes longer waits for the dead."""
COUNT_EVERY = 20
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
SETTINGS = {"LAKEHOUSE_WORKER_IDLE": f"PT{IDLE_SECONDS}S", "LAKEHOUSE_MAX_WORKERS": str(AT_ONCE)}


def measure(bench: Bench) -> list[Section]:
    """One section."""
    campaign = Campaign(bench, random.Random(50))
    for number in range(bench.times(KILLS, quick=2)):
        campaign.kill()
        if (number + 1) % COUNT_EVERY == 0:
            campaign.count()
    return [campaign.section()]


class Campaign:
    """The kills of one home."""

    def __init__(self, bench: Bench, chance: random.Random) -> None:
        self.env = bench.environment("kills") | SETTINGS
        self.home, self.chance = bench.home / "kills", chance
        self.days = DAYS.get_partition_keys()
        self.victims: dict[str, Callable[[Sequence[subprocess.Popen[bytes]]], list[int]]] = {
            "run": lambda runs: [run.pid for run in runs if run.poll() is None],
            "server": lambda _: [one.about.pid for one in self._servers()],
            "JVM": lambda _: [one.about.jvm for one in self._servers() if one.about.jvm],
            "worker": lambda _: [
                pid for one in self._servers() for pid in children_of(one.about.pid) if pid != one.about.jvm
            ],
            "process of the JVM": lambda _: [pid for one in self._servers() for pid in children_of(one.about.jvm)],
        }
        self.killed = dict.fromkeys(self.victims, 0)
        self.green = self.red = self.wrong = self.stuck = 0
        self.filled: set[str] = set()
        began = time.monotonic()
        self._end([self._start(self.days[0])])
        self.seconds = time.monotonic() - began

    def kill(self) -> None:
        """Kills a process while two runs work, and waits until both have ended."""
        runs = [self._start(day) for day in self.chance.sample(self.days, AT_ONCE)]
        name, until = self.chance.choice([*self.victims]), time.monotonic() + self.chance.uniform(0, self.seconds)
        while time.monotonic() < until:
            time.sleep(0.05)
        if pids := self.victims[name](runs):
            with suppress(ProcessLookupError):
                os.kill(self.chance.choice(pids), self.chance.choice(SIGNALS))
                self.killed[name] += 1
        self._end(runs)

    def count(self) -> None:
        """Counts rows: a day has all of its rows, or none if no run of it was green."""
        table = load_lake(read_settings(self.env)).load_table(TABLE.identifier)
        found = table.scan().to_arrow().column("day").to_pylist()
        for day in self.days:
            rows = found.count(datetime.fromisoformat(day).date())
            self.wrong += rows != ROWS and (rows != 0 or day in self.filled)

    def section(self) -> Section:
        """Waits until all idle workers must have ended, then looks for what stays."""
        self.count()
        time.sleep(IDLE_SECONDS + 15)
        processes = [pid for pid in _processes() if f"LAKEHOUSE_HOME={self.home}".encode() in _environ(pid)]
        left = list((self.home / folders.WORKERS).iterdir())
        twice = _granted_twice((self.home / NOTES).read_text().splitlines())
        cells = (sum(self.killed.values()), self.green, self.red, self.wrong, len(processes), len(left), twice)
        return Section(
            f"Kills at random moments, while {AT_ONCE} runs work",
            ("kills", "green runs", "failed runs", "days with wrong rows", "processes left", "folders left", "twice"),
            [cells],
            [
                Verdict("no row is lost or doubled", f"{self.wrong} days", self.wrong == 0),
                Verdict("no run waits for the dead", f"{self.stuck} runs", self.stuck == 0),
                Verdict("nothing stays behind", f"{processes} {left}", not processes and not left),
                Verdict("no JVM is leased twice at once", f"{twice} times", twice == 0),
            ],
            [f"Killed: {', '.join(f'{name} {number}' for name, number in self.killed.items())}."],
        )

    def _start(self, day: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "bench.kills_once", day]
        log = (self.home.parent / "runs.log").open("ab")
        return subprocess.Popen(command, cwd=ROOT, env=self.env, stdout=log, stderr=log, start_new_session=True)

    def _end(self, runs: Sequence[subprocess.Popen[bytes]]) -> None:
        for run in runs:
            try:
                code = run.wait(LONGEST_SECONDS)
            except subprocess.TimeoutExpired:
                self.stuck += 1
                run.kill()
                code = run.wait()
            self.green += code == 0
            self.red += code != 0
            if code == 0:
                self.filled.add(str(run.args[-1]))  # type: ignore[index]

    def _servers(self) -> list[folders.Folder]:
        return folders.found(self.home / folders.WORKERS)


def _granted_twice(notes: Sequence[str]) -> int:
    """Counts chunks that began in a JVM in which another had begun and not ended."""
    working: set[str] = set()
    twice = 0
    for line in notes:
        what, _, jvm = line.partition(" ")
        twice += what == "begin" and jvm in working
        (working.add if what == "begin" else working.discard)(jvm)
    return twice


def _processes() -> Iterator[int]:
    yield from (int(name) for name in os.listdir("/proc") if name.isdecimal())


def _environ(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""
