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


@dataclass(frozen=True)
class Scan:
    """One scan of a table. files: that Iceberg planned to read. skipped: that it left out by their bounds or by their
    partitions. moved: whether its rows are exchanged before they are joined."""

    files: int
    skipped: int
    moved: bool


def scans_of_last_write(spark: SparkSession, table: str) -> list[Scan]:
    """The scans of the table in the final plan of the last write, of whichever session. table: Spark's name."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    store = spark._jsparkSession.sharedState().statusStore()
    for execution in reversed([run.executionId() for run in _each(store.executionsList())]):
        graph = store.planGraph(execution)
        nodes = {node.id(): node for node in _each(graph.allNodes())}
        if WRITES & {node.name() for node in nodes.values()}:
            above = {edge.fromId(): edge.toId() for edge in _each(graph.edges())}
            values = store.executionMetrics(execution)
            scans = [node for node in nodes.values() if node.name() == f"BatchScan {table}"]
            return [_scan(node, nodes, above, values) for node in scans]
    raise AssertionError("nothing was written")


def _scan(node: Any, nodes: dict[int, Any], above: dict[int, int], values: Any) -> Scan:
    metrics = {metric.name(): values.get(metric.accumulatorId()) for metric in _each(node.metrics())}
    files, skipped = (int(metrics[name].get()) for name in (RESULT, SKIPPED))
    return Scan(files, skipped, "Exchange" in _up_to_a_join(node.id(), nodes, above))


def _up_to_a_join(at: int, nodes: dict[int, Any], above: dict[int, int]) -> Iterator[str]:
    """Names of the nodes above one, before the first join."""
    while (at := above.get(at, -1)) in nodes and not nodes[at].name().endswith("Join"):
        yield nodes[at].name()


def _each(sequence: Any) -> Iterator[Any]:
    """The elements of Scala's sequence."""
    return (sequence.apply(n) for n in range(sequence.size()))
