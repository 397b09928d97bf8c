"""Lets a step read the pinned versions of its table's inputs as ``lake``, and nothing else.

How pins are made is commit/pins.py's; what a step that reads or writes something else is told, failure.py's.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import SparkSession

from lakehouse_assets.environment.catalog_translation import LAKE
from lakehouse_assets.protocol.inputs import Pin
from lakehouse_assets.worker.session import literal


def register_inputs(spark: SparkSession, pins: Iterable[Pin]) -> None:
    """Registers each pinned table, under its own name, in the session's private catalog ``lake``."""
    for table, location in {pin.table: pin.metadata for pin in pins}.items():
        called = f"table => {literal(table)}, metadata_file => {literal(location)}"
        spark.sql(f"CALL {LAKE}.system.register_table({called})")
