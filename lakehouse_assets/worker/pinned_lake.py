"""Lets a step read the pinned versions of its table's inputs as ``lake``, and nothing else.

How pins are made is commit/pins.py's; what a step that reads or writes something else is told, failure.py's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from pyiceberg.catalog import load_catalog
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from lakehouse_assets.environment.catalog_in_spark import LAKE
from lakehouse_assets.wire.work import Pin
from lakehouse_assets.worker.credentials import TableCredentials
from lakehouse_assets.worker.failure import InputDropped, InputMoved
from lakehouse_assets.worker.session import literal


@contextmanager
def reading(spark: SparkSession, pins: Sequence[Pin], credentials: TableCredentials) -> Iterator[None]:
    """Has the pinned tables as ``lake`` within the context.

    Where the catalog vends credentials by table, ``lake`` is the catalog itself, as only it can give what reads these
    files: then it is compared before and after. Raises InputMoved.
    """
    if not credentials.vended:
        for table, location in {pin.table: pin.metadata for pin in pins}.items():
            called = f"table => {literal(table)}, metadata_file => {literal(location)}"
            spark.sql(f"CALL {LAKE}.system.register_table({called})")
        yield
        _refuse_dropped(spark, dict.fromkeys(pin.table for pin in pins))
        return
    _refuse_moved(pins, credentials.catalog)
    yield
    _refuse_moved(pins, credentials.catalog)


def _refuse_dropped(spark: SparkSession, tables: Iterable[str]) -> None:
    """Raises InputDropped for what a step took from its own catalog: it means to have done so to everybody's."""
    for table in tables:
        try:
            spark.table(f"{LAKE}.{table}")  # not SHOW TABLES: Derby has no LIMIT, which that needs
        except AnalysisException:
            raise InputDropped(
                f"the step dropped {table}, of which it has a copy of its own: a step only reads the lake"
            ) from None


def _refuse_moved(pins: Sequence[Pin], properties: Mapping[str, str]) -> None:
    catalog = load_catalog(LAKE, **properties) if pins else None
    for pin in pins:
        metadata = catalog.load_table(pin.table).metadata if catalog else None
        ref = metadata.refs.get(pin.ref) if metadata else None
        found = (metadata and metadata.table_uuid, ref and ref.snapshot_id)
        if found != (pin.uuid, pin.snapshot_id):
            raise InputMoved(f"{pin.table} has snapshot {found[1]} now, and the run has pinned {pin.snapshot_id}")
