"""One publish of forks that exist already, in a process of its own: seconds, peak memory, manifests read.
Prints one line of JSON; synthetic.py writes the forks."""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
from pyiceberg.catalog import load_catalog
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from bench.synthetic import FIRST_DAY, TABLE, properties
from lakehouse_assets.commit.change import Change
from lakehouse_assets.commit.publish import publish
from lakehouse_assets.commit.staged import read_all
from lakehouse_assets.commit.tokens import RunToken
from lakehouse_assets.declare.alignment import Alignment
from lakehouse_assets.wire.receipts import Receipt
from tests.support.forks import SCHEMA, SPEC

MANIFEST = re.compile(r"-m\d+\.avro$")
MIB = 2**20


class CountingFileIO(PyArrowFileIO):
    """Notes every location that is opened for reading."""

    read: list[str] = []  # noqa: RUF012  of all instances: the catalog makes one for each table it loads

    def new_input(self, location: str) -> PyArrowFile:
        self.read.append(location)
        return super().new_input(location)


def main(home: Path, token: str) -> None:
    receipts = [Receipt.from_json(line) for line in (home / f"{token}.receipts").read_text().splitlines()]
    catalog = load_catalog("lake", **properties(home), **{"py-io-impl": "bench.publish_once.CountingFileIO"})
    keys = [receipt.keys[0] for receipt in receipts]
    daily = dg.DailyPartitionsDefinition(FIRST_DAY.isoformat())
    region = Alignment.of(TABLE, SCHEMA, SPEC, daily).region(keys)
    target = catalog.load_table(TABLE)
    os.sync()  # this machine wrote the forks a moment ago: writing them to disk must not count as publishing
    before, started = _peak(), time.perf_counter()
    chunks = read_all(target.io.properties, receipts)
    read = time.perf_counter() - started
    # The class that PyIceberg imports: this module's own is __main__.CountingFileIO.
    from bench.publish_once import CountingFileIO as Counting

    Counting.read.clear()
    change = Change(region, chunks)
    published = publish(catalog, TABLE, change, RunToken(token, datetime.now(UTC)))
    snapshot = catalog.load_table(TABLE).metadata.snapshot_by_id(published.snapshot_id)
    assert snapshot
    assert snapshot.summary
    measured = {
        "added": int(snapshot.summary["added-data-files"] or 0),
        "removed": int(snapshot.summary["deleted-data-files"] or 0),
        "read": read,
        "publish": published.seconds,
        "before": before / MIB,
        "peak": _peak() / MIB,
        "manifests_read": sum(bool(MANIFEST.search(location)) for location in Counting.read),
        "attempts": published.attempts,
    }
    print(json.dumps(measured))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
