"""One look at a table that exists already, in a process of its own: seconds, CPU seconds, memory.
Prints one line of JSON; synthetic.py writes the table."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from pyiceberg.catalog import load_catalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from bench.synthetic import TABLE, properties
from lakehouse_assets.maintenance.health.look import look
from lakehouse_assets.maintenance.health.summaries import SummaryCache

MIB = 2**20


def main(how: str, home: Path, cache: Path) -> None:
    """how ``look``: ours. ``own``: reads all entries as PyIceberg does, keeping none."""
    table = load_catalog("lake", **properties(home)).load_table(TABLE)
    kept = SummaryCache(PyArrowFileIO(), str(cache))
    before, cpu, wall = _peak(), time.process_time(), time.perf_counter()
    files = look(table, kept).total("files") if how == "look" else _own(table)
    measured = {
        "cpu": time.process_time() - cpu,
        "wall": time.perf_counter() - wall,
        "memory": (_peak() - before) / MIB,
        "files": files,
    }
    print(json.dumps(measured))


def _own(table: Table) -> int:
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot else []
    return sum(len(manifest.fetch_manifest_entry(table.io)) for manifest in manifests)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
