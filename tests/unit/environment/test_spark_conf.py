"""Spark's settings come from one place and this machine; a table and the environment may override them."""

from __future__ import annotations

import dataclasses

import pytest

from lakehouse_assets.environment import spark_setup
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.environment.spark_setup import HEAP_SHARE_ALONE, driver_memory, machine_conf

GIB = 2**30


@pytest.mark.parametrize(
    ("memory", "workers", "heap"),
    [
        (6 * GIB, 1, "2457m"),
        (6 * GIB, 4, "1536m"),  # never so small that a year of partitions can't be written
        (24 * GIB, 2, "4915m"),
        (512 * GIB, 1, "98304m"),
        (2 * GIB, 1, "1024m"),  # the other half is for Python and the JVM beside its heap
    ],
)
def test_the_heap_is_a_share_of_the_machine_within_bounds(memory: int, workers: int, heap: str) -> None:
    assert driver_memory(memory, workers) == heap


@pytest.mark.parametrize(
    ("memory", "heap"), [(GIB // 2, "256m"), (GIB, "512m"), (2 * GIB, "1024m"), (3 * GIB, "2048m"), (8 * GIB, "5734m")]
)
def test_a_container_of_its_own_keeps_a_gib_beside_the_heap_or_half_of_what_is_less(memory: int, heap: str) -> None:
    assert driver_memory(memory, 1, HEAP_SHARE_ALONE) == heap


def test_a_table_overrides_the_defaults_and_the_environment_overrides_both(fake_jars: Settings) -> None:
    own = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "9"}
    settings = dataclasses.replace(fake_jars, spark_conf={"spark.driver.memory": "2g"})
    conf = spark_setup.spark_conf(settings, own)
    assert conf["spark.driver.memory"] == "2g"
    assert conf["spark.sql.shuffle.partitions"] == "9"
    assert conf["spark.sql.session.timeZone"] == "UTC"


def test_a_session_on_emr_leaves_to_spark_submit_what_that_made_of_its_files(settings: Settings) -> None:
    own = {
        "spark.submit.pyFiles": "s3://bucket/own.zip",
        "spark.archives": "s3://bucket/env.tar.gz#env",
        "spark.x": "y",
    }
    of_environment = dataclasses.replace(settings, spark_conf={"spark.jars": "s3://bucket/own.jar", "spark.y": "z"})
    conf = spark_setup.spark_conf(of_environment, own, "emr")
    assert conf.keys() & {*own, "spark.jars", "spark.y"} == {"spark.x", "spark.y"}


def test_settings_hold_no_catalog_and_no_absent_archive(fake_jars: Settings) -> None:
    conf = machine_conf(fake_jars, "1g", None, fake_jars.home / "tmp")
    assert not [name for name in conf if name.startswith("spark.sql.catalog.")]
    assert "SharedArchiveFile" not in conf["spark.driver.defaultJavaOptions"]
    assert conf["spark.driver.extraClassPath"].endswith("b.jar")
