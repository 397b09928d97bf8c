"""What Spark's own store of executions tells of the latest write: the scans in its final plan, and Iceberg's report.
It is read through py4j, which is for tests only; what a plan should be is the tests'."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

WRITES = {"ReplaceData", "WriteDelta", "AppendData"}
RESULT, SKIPPED = "number of result data files", "number of skipped data files"
"""Iceberg's names of its metrics (org.apache.iceberg.spark.source.metrics)."""
MOVED = "shuffle records written"
"""Spark's name (org.apache.spark.sql.execution.metric.SQLShuffleWriteMetricsReporter)."""


@dataclass(frozen=True)
class Scan:
    """One scan of a table. files: that Iceberg planned to read. skipped: that it left out by their bounds or by their
    partitions. moved: how many of its rows are exchanged before they are joined, None if they need not be."""

    files: int
    skipped: int
    moved: int | None


def scans_of_last_write(spark: SparkSession, table: str) -> list[Scan]:
    """The scans of the table in the final plan of the last write, of whichever session. table: Spark's name."""
    store, execution, graph, nodes = _last_write(spark)
    above = {edge.fromId(): edge.toId() for edge in _each(graph.edges())}
    values = store.executionMetrics(execution)
    scans = [node for node in nodes.values() if node.name() == f"BatchScan {table}"]
    return [_scan(node, nodes, above, values) for node in scans]


def kind_of_last_write(spark: SparkSession) -> str:
    """Which of WRITES it was."""
    _, _, _, nodes = _last_write(spark)
    (kind,) = WRITES & {node.name() for node in nodes.values()}
    return kind


def _last_write(spark: SparkSession) -> tuple[Any, int, Any, dict[int, Any]]:
    """Spark's store, the execution's id, its graph, and the nodes of that by their ids."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    store = spark._jsparkSession.sharedState().statusStore()
    for execution in reversed([run.executionId() for run in _each(store.executionsList())]):
        graph = store.planGraph(execution)
        nodes = {node.id(): node for node in _each(graph.allNodes())}
        if WRITES & {node.name() for node in nodes.values()}:
            return store, execution, graph, nodes
    raise AssertionError("nothing was written")


def _scan(node: Any, nodes: dict[int, Any], above: dict[int, int], values: Any) -> Scan:
    files, skipped = (_metric(node, name, values) for name in (RESULT, SKIPPED))
    exchanges = (found for found in _up_to_a_join(node.id(), nodes, above) if found.name() == "Exchange")
    return Scan(files, skipped, next((_metric(found, MOVED, values) for found in exchanges), None))


def _metric(node: Any, name: str, values: Any) -> int:
    (found,) = (metric for metric in _each(node.metrics()) if metric.name() == name)
    return int(values.get(found.accumulatorId()).get().replace(",", ""))


def _up_to_a_join(at: int, nodes: dict[int, Any], above: dict[int, int]) -> Iterator[Any]:
    """The nodes above one, before the first join."""
    while (at := above.get(at, -1)) in nodes and not nodes[at].name().endswith("Join"):
        yield nodes[at]


def _each(sequence: Any) -> Iterator[Any]:
    """The elements of Scala's sequence."""
    return (sequence.apply(n) for n in range(sequence.size()))
