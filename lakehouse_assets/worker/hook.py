"""What an extension may add to the staging of a chunk, in a worker. The run's side is RunHook (run/extension.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from lakehouse_assets.wire.work import Assignment
    from lakehouse_assets.worker.session import TableCredentials


@dataclass(frozen=True)
class ChunkContext:
    """The chunk that is staged."""

    spark: SparkSession
    assignment: Assignment
    credentials: TableCredentials
    columns: StructType
    """The table's columns before the step, in Spark's types."""


class StageHook:
    """An extension's part in staging one chunk. Each method does nothing by default.

    chunk: the chunk that is staged. told: what RunHook.work() returned, as JSON data.
    """

    def __init__(self, chunk: ChunkContext, told: Any) -> None:
        self.chunk, self.told = chunk, told

    def offers(self) -> Mapping[str, Callable[..., DataFrame]]:
        """Returns what the step finds in ``window.offers``, by name: changes() and source_rows() call two of these."""
        return {}

    def reading(self) -> AbstractContextManager[None]:
        """Returns a context in which the step runs and its rows are written."""
        return nullcontext()

    def check(self, rows: DataFrame) -> None:
        """Raises an error if the step's rows can't be written."""

    def done(self) -> Mapping[str, Any]:
        """Returns what the receipt records of this hook; under ``read_to``, positions by input."""
        return {}


def open_hooks(chunk: ChunkContext) -> dict[str, StageHook]:
    """Opens the hooks that the assignment names; no others are imported."""
    return {name: resolve_name(work.hook)(chunk, work.told) for name, work in chunk.assignment.extensions.items()}
