"""A private fork in the worker's own catalog ``stage``: how it is registered, and what was committed to it.

What is written to it is stage.py's and fork_rewrite.py's.
"""

from __future__ import annotations

import time

from pyspark.sql import SparkSession


class ForkError(RuntimeError):
    """The fork does not hold one commit."""


def register(spark: SparkSession, fork_base: str, token: str, chunk: int) -> str:
    """Registers a table with this metadata file, which only this session sees. Returns Spark's name of it."""
    name = f"fork_{token.replace('-', '_').replace('.', '_')}_{chunk}_{time.time_ns()}"
    spark.sql(f"CALL stage.system.register_table(table => 'forks.{name}', metadata_file => {literal(fork_base)})")
    return f"stage.forks.{name}"


def committed_metadata(spark: SparkSession, fork: str, fork_base: str, table: str) -> str:
    """Returns the one entry of the metadata log that is not the base. Timestamps don't tell which it is: clocks differ.

    table: its identifier, for the message. Raises ForkError.
    """
    entries: list[str] = [row.file for row in spark.sql(f"SELECT file FROM {fork}.metadata_log_entries").collect()]
    written = [file for file in entries if file != fork_base]
    if len(written) != 1:
        raise ForkError(
            f"table {table}: the fork of {fork_base} should have one commit, it has {len(written)}: {written}"
        )
    return written[0]


def literal(text: str) -> str:
    """Returns text as a literal of SQL. Before Spark 4, Iceberg parses CALL and takes no parameters."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
