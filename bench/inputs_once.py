"""One process that pins inputs as a run does, and reads them as a worker's session does. Prints a line of JSON.
What is compared is said in inputs.py."""

from __future__ import annotations

import json
import os
import sys
import time

import pyarrow as pa

from lakehouse_assets.environment.catalog import catalog_properties, load_lake
from lakehouse_assets.environment.catalog_in_spark import spark_catalogs
from lakehouse_assets.environment.file_io import ClosingFileIO
from lakehouse_assets.environment.settings import Settings, read_settings
from lakehouse_assets.environment.spark_setup import environment, spark_conf
from lakehouse_assets.inputs.pins import pin_inputs
from tests.support.live_lake import live_catalogs

COLUMNS = [f"c{n}" for n in range(20)]


def main(inputs: int, snapshots: int, live: bool) -> None:
    settings = read_settings()
    names = [f"bench.input_{n}" for n in range(inputs)]
    if not settings.home.joinpath("catalog.db").exists():
        _fill(settings, names, snapshots)
    catalog, io = load_lake(settings), ClosingFileIO(catalog_properties(settings))
    catalog.load_table(names[0])  # it has loaded its own table, by then
    start = time.monotonic()
    pins = pin_inputs(catalog, "bench.reader", names, [], io, f"{settings.staging}/token")
    pinned = time.monotonic() - start

    os.environ.update(environment())
    from lakehouse_assets.inputs.worker import reading
    from lakehouse_assets.worker.session import TableCredentials, build_session, configure

    properties = catalog_properties(settings)
    spark = configure(build_session(spark_conf(settings, {})), (live_catalogs if live else spark_catalogs)(properties))
    spark.range(1).collect()
    start = time.monotonic()
    with reading(spark, () if live else pins, TableCredentials(properties, names[0])):
        for name in names:
            spark.table(f"lake.{name}").schema  # noqa: B018  it loads the table
    print(json.dumps({"pinned": pinned, "read": time.monotonic() - start}))


def _fill(settings: Settings, names: list[str], snapshots: int) -> None:
    """The tables: one with rows and a history, the others with its metadata under names of their own."""
    catalog = load_lake(settings)
    catalog.create_namespace("bench")
    rows = pa.table({name: pa.array([1], pa.int64()) for name in COLUMNS})
    first = catalog.create_table(names[0], rows.schema)
    for _ in range(snapshots):
        first.append(rows)
    for name in names[1:]:
        catalog.register_table(name, first.metadata_location)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "live")
