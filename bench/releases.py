"""Whether readers of releases ever see half of one, what a release costs, and what its pointer costs a reader.
The publisher that is killed, and the client that expires snapshots beside it, are releases_once.py."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyiceberg.catalog import Catalog

from bench.context import ROOT, Bench
from bench.releases_once import NAME
from bench.report import Section, Spread, at_most
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.errors import NoSuchRelease
from lakehouse_assets.extensions.releases.pointer import release

KILLED_AMONG, MEMBERS, MANY = 200, 3, 20
MOST_MS = 50


def measure(bench: Bench) -> list[Section]:
    """Two sections: what readers saw, and what it costs."""
    return [_readers(bench), _cost(bench)]


def _readers(bench: Bench) -> Section:
    env = bench.environment("releases")
    bench.python("-m", "bench.releases_once", "publish", MEMBERS, 1, env=env)
    catalog, seen = load_lake(read_settings(env)), Counter[str]()
    wanted, killed, number, longest = bench.times(KILLED_AMONG, quick=3), 0, 1, 5.0
    with _child(env, "expire", MEMBERS):
        while number < wanted:
            with _child(env, "publish", MEMBERS, wanted) as publisher:
                before, ends = number, time.monotonic() + random.uniform(2, longest)
                while time.monotonic() < ends and publisher.poll() is None and number < wanted:
                    number = _read(catalog, seen)
            killed += 1
            if number == before:  # a slow machine: it may have had no time to publish anything
                longest *= 2
    rows = [
        ("releases", number),
        ("publishers killed by SIGKILL", killed),
        ("reads of releases", seen["release"]),
        ("of these, of two generations or unreadable", seen["mixed release"]),
        ("reads of the tables' heads", seen["heads"]),
        ("of these, of two generations", seen["mixed heads"]),
    ]
    verdict = at_most("mixed reads of releases", seen["mixed release"], 0)
    return Section(f"Releases of {MEMBERS} tables, beside a client that expires snapshots", ("", ""), rows, [verdict])


def _read(catalog: Catalog, seen: Counter[str]) -> int:
    """Reads the newest release and the heads; returns the release's number."""
    released = release(NAME, catalog=catalog)
    try:
        found = {tuple(released.scan(table).to_arrow()["n"].to_pylist()) for table in released.members}
    except NoSuchRelease:
        found = set()
    heads = set()
    for table in released.members:
        heads.add(tuple(catalog.load_table(table).scan().to_arrow()["n"].to_pylist()))
    seen.update({"release": 1, "heads": 1, "mixed release": len(found) != 1, "mixed heads": len(heads) != 1})
    return released.number


def _cost(bench: Bench) -> Section:
    env = bench.environment("releases-cost")
    # The eleventh drops the first, and its tags.
    told = bench.python("-m", "bench.releases_once", "publish", MANY, bench.times(12, quick=2), env=env).lines
    catalog, milliseconds = load_lake(read_settings(env)), []
    for _ in range(bench.times(20, quick=3)):
        started = time.perf_counter()
        release(NAME, catalog=catalog)
        milliseconds.append((time.perf_counter() - started) * 1000)
    warm = Spread.of(milliseconds[1:])  # the first imports what reads Parquet
    rows = [
        ("seconds until readers have it", Spread.of([one["seconds"] for one in told])),
        ("seconds with its tidying", Spread.of([one["with_tidy"] for one in told])),
        ("commits", told[-1]["commit_table"]),
        ("loads of tables, those within commits included", told[-1]["load_table"]),
        ("milliseconds in which a reader has the pointer", warm),
    ]
    title = f"A release of {MANY} tables, {told[-1]['release']} releases made"
    return Section(title, ("", ""), rows, [at_most("a reader has the pointer within", warm.median, MOST_MS, " ms")])


@contextmanager
def _child(env: Mapping[str, str], *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """A process of releases_once.py that is killed in the end."""
    command = [sys.executable, "-W", "ignore", "-m", "bench.releases_once", *map(str, arguments)]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, cwd=ROOT, env=dict(env), stdout=output)
        try:
            yield process
        finally:
            process.kill()
            process.wait()
