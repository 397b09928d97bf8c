"""Putting files into the trash and bringing them back: on a local disk, in a bucket, in a bucket with versions.
No Spark; SeaweedFS on this machine is the server. Each storage is a process of its own (trash_once.py)."""

from __future__ import annotations

import json
from typing import Any

from bench.context import Bench, BenchError
from bench.report import Section, Spread, at_most
from tests.support.servers import PLAIN_BUCKET, seaweedfs

FILES, LIMIT_S = 10_000, 60
VERSIONS = "versions"


def trash(bench: Bench) -> Section:
    """One section: seconds to put 10,000 files into the trash and to bring them back."""
    files = 200 if bench.quick else FILES
    with seaweedfs() as server:
        properties, staging = json.dumps(server.s3_properties()), f"s3://{PLAIN_BUCKET}/staging"
        local = bench.home / "trash"
        found = {
            "local disk": _run(bench, "{}", str(local / "staging"), str(local / "wh" / "t"), files),
            "S3": _run(bench, properties, staging, f"s3://{PLAIN_BUCKET}/wh/t", files),
            "S3, a bucket with versions": _run(bench, properties, staging, f"s3://{VERSIONS}/wh/t", files),
        }
    whole = {storage: Spread.of([a + b for a, b in zip(*_cycles(f), strict=True)]) for storage, f in found.items()}
    rows = [
        (storage, *map(Spread.of, _cycles(f)), Spread.of(f["list"]), f"{max(f['memory']):.0f}")
        for storage, f in found.items()
    ]
    return Section(
        f"{files:,} files into the trash and back",
        ("", "trashed, s", "restored, s", "listed, s", "more memory, MiB"),
        rows,
        [
            at_most(f"{storage}: both together at most {LIMIT_S} s", s.median, LIMIT_S, " s")
            for storage, s in whole.items()
        ],
        ["Files of 100 bytes in 30 folders. SeaweedFS on the same cores; S3 itself takes other times."],
    )


def _cycles(found: dict[str, Any]) -> tuple[list[float], list[float]]:
    return found["put"], found["restore"]


def _run(bench: Bench, properties: str, staging: str, root: str, files: int) -> dict[str, Any]:
    arguments = ("-m", "bench.trash_once", properties, staging, root, files, bench.times(3))
    (measured,) = bench.python(*arguments, env=bench.environment("synthetic")).lines
    if measured["files"] != files:
        raise BenchError(f"{root}: {measured['files']} files came back, expected {files}")
    return dict(measured)
