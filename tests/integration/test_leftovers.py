"""What a step leaves in a JVM is noticed, each of them in one JVM; what then happens is in test_fork_server.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lakehouse_assets.extensions.fork_server.leftovers import State, has_running_tasks, left
from tests.support import leaving_steps
from tests.support.faults import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
TOLD = {
    "global_view": "global temporary views",
    "cache": "cached data",
    "rdd": "persisted RDDs",
    "java_zone": "another default time zone of Java",
    "java_locale": "another default locale of Java",
    "log_level": "a changed log level",
    "property": "a changed system property",
    "hadoop": "a changed sparkContext.hadoopConfiguration",
    "spark_conf": "changed settings of the SparkContext",
    "checkpoints": "a checkpoint folder",
    "file": "added files",
    "jar": "added jars",
    "stream": "a streaming query",
    "job": "running jobs",
    "catalog_table": "tables in spark_catalog",
}


def end_jobs(spark: SparkSession) -> None:
    """A cancelled job has ended before its tasks have, which the next test would find."""
    spark.sparkContext.cancelAllJobs()
    wait_for(lambda: not has_running_tasks(spark.sparkContext._jsc.sc()))


UNDONE: dict[str, Callable[[Any], object]] = {
    "global_view": lambda spark: spark.catalog.dropGlobalTempView("left_view"),
    "cache": lambda spark: spark.catalog.clearCache(),
    "rdd": lambda spark: [rdd.unpersist() for rdd in spark.sparkContext._jsc.getPersistentRDDs().values()],
    "stream": lambda spark: [query.stop() for query in spark.streams.active],
    "job": lambda spark: end_jobs(spark),
    "catalog_table": lambda spark: spark.sql("DROP TABLE spark_catalog.default.left_table"),
}


@pytest.mark.parametrize("act", TOLD)
def test_what_a_step_leaves_in_a_jvm_is_noticed(
    jvm: SparkSession, act: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))
    java, base, spark = jvm._jvm, jvm._jsparkSession, jvm.newSession()
    before = State.of(java, base)
    assert left(before, java, base) == []
    leaving_steps.IN_JVM[act](spark)
    try:
        assert TOLD[act] in left(before, java, base)
    finally:
        UNDONE.get(act, lambda _: None)(spark)


def test_each_act_is_tried() -> None:
    assert leaving_steps.IN_JVM.keys() - TOLD.keys() == {"thread"}, "of Python, so its worker looks for it"
