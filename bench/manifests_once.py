"""One rewrite of manifests, or the planning of one day, of a table that exists already, in a process of its own.
Prints one line of JSON; synthetic.py writes the table."""

from __future__ import annotations

import json
import resource
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog

from bench.synthetic import FIRST_DAY, TABLE, properties
from lakehouse_assets.commit.tokens import RunToken
from lakehouse_assets.maintenance.rewrite.manifests import rewrite_manifests

MIB = 2**20


def main(what: str, home: Path) -> None:
    """what: ``rewrite`` or ``plan``."""
    catalog = load_catalog("lake", **properties(home))
    catalog.load_table(TABLE)  # imports all that it needs
    print(json.dumps(_rewrite(catalog) if what == "rewrite" else _plan(catalog)))


def _rewrite(catalog: Catalog) -> dict[str, Any]:
    memory, cpu, started = _peak(), time.process_time(), time.perf_counter()
    report = rewrite_manifests(catalog, TABLE, RunToken("bench", datetime.now(UTC)))
    return {
        "seconds": time.perf_counter() - started,
        "cpu": time.process_time() - cpu,
        "memory": (_peak() - memory) / MIB,
        "after": report.after.manifests,
        "size_before": report.before.size,
        "size_after": report.after.size,
    }


def _plan(catalog: Catalog) -> dict[str, Any]:
    table = catalog.load_table(TABLE)
    started = time.perf_counter()
    files = list(table.scan(row_filter=f"day = '{FIRST_DAY}'").plan_files())
    return {"seconds": time.perf_counter() - started, "files": len(files)}


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
