"""Writers with maintenance beside them, without, and with the stock procedures: what they feel of it.
Writers and maintenance are processes of their own (beside_once.py) on SeaweedFS' REST catalog and S3."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import quantiles
from typing import Any

from bench.context import ROOT, Bench, BenchError
from bench.report import Section, Verdict, at_most

MINUTES = 20
TABLES = 4
ALONE, OURS, STOCK = "alone", "ours", "stock"
NAMES = {
    ALONE: "no maintenance",
    OURS: "ours: compaction, deletes, manifests, expiry in a loop",
    STOCK: "stock: rewrite_data_files, rewrite_manifests, expire_snapshots in a loop",
}


def beside(bench: Bench, minutes: float = MINUTES) -> Section:
    """One section: a commit every 10 s on four tables, for so many minutes with each kind of maintenance."""
    from lakehouse_assets.environment.spark_setup import environment
    from tests.support.servers import seaweedfs

    seconds = 60 * (0.5 if bench.quick else minutes)
    found: dict[str, list[dict[str, Any]]] = {}
    with seaweedfs() as server:
        lake = {**server.environment(), "LAKEHOUSE_STAGING": f"{server.plain}/staging"}
        env = {**bench.environment("beside"), **lake, **environment()}
        for way in NAMES:
            found[way] = _run(bench, way, seconds, env)
    p95 = {way: _p95(answers) for way, answers in found.items()}
    ours = found[OURS]
    felt = _sum(ours, "failed") + _sum(ours, "retries")
    slower = 100 * (p95[OURS] / p95[ALONE] - 1)
    return Section(
        f"Four tables, a commit every 10 s for {seconds / 60:g} minutes, with maintenance beside",
        ("", "commits", "failed", "retries", "rows wrong", "p95, s", "maintenance: done", "failed", "conflicts"),
        [
            (
                name,
                *(_sum(found[way], what) for what in ("commits", "failed", "retries", "wrong")),
                f"{p95[way]:.2f}",
                *(_sum(found[way], what) for what in ("done", "undone", "dropped")),
            )
            for way, name in NAMES.items()
        ],
        [
            Verdict("0 failures and 0 retries of writers", f"{felt}", felt == 0),
            at_most("p95 of a commit at most 5 % longer than without", slower, 5, " %"),
        ],
        [
            "Writers append and publish in turns, each in a process of its own. Ours and stock run at a lower priority "
            "on the same machine. Done: commits of maintenance. Failed: its calls that failed, whose work is lost. "
            "Conflicts: partitions and groups that ours dropped.",
            *(f"{way}, an error: `{answer['error']}`" for way in NAMES for answer in found[way] if answer["error"]),
        ],
    )


def _run(bench: Bench, way: str, seconds: float, env: Mapping[str, str]) -> list[dict[str, Any]]:
    tables = [f"bench.{way}_{n}" for n in range(TABLES)]
    start = time.time() + 60  # when all have started and the tables are filled
    roles = [("writer", table) for table in tables] + ([(way, ",".join(tables))] if way != ALONE else [])
    log = bench.home / f"{way}.log"
    with log.open("w") as errors:
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "bench.beside_once", *role, str(start), str(seconds)],
                cwd=ROOT,
                env=dict(env),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
            for role in roles
        ]
        outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise BenchError(f"{way}: a process failed:\n{_tail(log)}")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def _tail(log: Path) -> str:
    return "\n".join(log.read_text().splitlines()[-25:])


def _sum(answers: list[dict[str, Any]], what: str) -> int:
    return sum(answer.get(what, 0) for answer in answers)


def _p95(answers: list[dict[str, Any]]) -> float:
    taken: list[float] = [seconds for answer in answers for seconds in answer.get("seconds", ())]
    return quantiles(taken, n=20)[-1]
