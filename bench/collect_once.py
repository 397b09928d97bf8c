"""Two passes of the collector over a table of many files, in a process of its own: seconds and the peak of its memory.
The listing is made up, as no disk of a laptop has a million files to spare; metadata, marks and staging are real."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from bench.synthetic import TABLE, properties
from lakehouse_assets.maintenance.collect.collect import collect
from lakehouse_assets.maintenance.collect.listing import Listed
from lakehouse_assets.maintenance.collect.report import Report
from lakehouse_assets.maintenance.collect.seen import Site
from lakehouse_assets.storage.place import Place, place_of

MIB = 2**20
DAY_MS = 24 * 3600 * 1000
OLD_MS = 60 * DAY_MS


@dataclass
class MadeUpSite(Site):
    """litter: how many files nobody needs, in the listing besides the table's own. days: how far its clock is ahead."""

    litter: int = 0
    days: int = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.days * DAY_MS

    def list_table(self, table: Table, root: Place) -> Iterator[Listed]:
        written = int(time.time() // 3600) * 3600_000 - OLD_MS
        for location in _live(table):
            yield Listed(place_of(location), 1_000_000, written, "0")
        for number in range(self.litter):
            name = f"data/day=2024-01-{number % 28 + 1:02d}/00000-{number}-{number:032x}-0-00001.parquet"
            yield Listed(root.child(name), 1_000_000, written + number, f"{number:x}")


def _live(table: Table) -> Iterator[str]:
    snapshot = table.current_snapshot()
    for manifest in snapshot.manifests(table.io) if snapshot else []:
        yield manifest.manifest_path
        yield from (entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io))


def _measured(site: MadeUpSite, days: int) -> dict[str, float]:
    site.days = days
    started, cpu = time.perf_counter(), time.process_time()
    report: Report = collect(site, TABLE, "bench", dry_run=False)
    return {
        "wall": time.perf_counter() - started,
        "cpu": time.process_time() - cpu,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB,
        "listed": report.listed.files,
        "live": report.kept["live"].files,
        "unneeded": report.unreachable.files,
        "due": report.due.files,
        "trashed": report.trashed.files,
    }


def main(home: Path, litter: int) -> None:
    site = MadeUpSite(
        load_catalog("lake", **properties(home)), (home / "staging").as_uri(), lambda _: {}, litter=litter
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB
    print(json.dumps({"before": before, "passes": [_measured(site, days) for days in (0, 4)]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
