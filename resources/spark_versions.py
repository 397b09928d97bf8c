"""Describes the installed Spark: where it is, which jars it needs beside its own, and its processes' environment.

The jars are fetched by spark_jars.py.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.metadata import version
from pathlib import Path

from resources.machine import WRAPPER, SetupError, java_home

DRIVERS = ("org.xerial:sqlite-jdbc:3.50.3.0", "org.postgresql:postgresql:42.7.7")
COORDINATES = {
    "4.1": (
        "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
        "org.apache.iceberg:iceberg-aws-bundle:1.12.0",
        # Steps read s3:// through Hadoop: its client for S3, of Spark's own Hadoop version, and the two parts of the
        # AWS SDK that Iceberg's bundle leaves out, of the bundle's version.
        "org.apache.hadoop:hadoop-aws:3.4.2",
        "software.amazon.awssdk:s3-transfer-manager:2.54.17",
        "software.amazon.awssdk:apache-client:2.54.17",
        *DRIVERS,
    ),
    # EMR 7's Spark, where steps read s3:// through EMR's own file system.
    "3.5": (
        "org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.10.0",
        "org.apache.iceberg:iceberg-aws-bundle:1.10.0",
        *DRIVERS,
    ),
}
"""The Maven coordinates of the jars, by the minor version of the installed Spark. EMR itself brings its own."""
EXCLUDED = (
    "commons-codec:*",
    "org.apache.httpcomponents:*",
    "org.wildfly.openssl:*",
    "software.amazon.awssdk:annotations",
    "software.amazon.awssdk:auth",
    "software.amazon.awssdk:aws-core",
    "software.amazon.awssdk:bundle",  # 600 MB
    "software.amazon.awssdk:http-client-spi",
    "software.amazon.awssdk:json-utils",
    "software.amazon.awssdk:metrics-spi",
    "software.amazon.awssdk:protocol-core",
    "software.amazon.awssdk:regions",
    "software.amazon.awssdk:s3",
    "software.amazon.awssdk:sdk-core",
    "software.amazon.awssdk:utils",
    "software.amazon.s3.analyticsaccelerator:*",
)
"""Dependencies of COORDINATES that Spark or Iceberg's bundle brings already, or that only other settings of S3A use."""


def spark_home() -> Path:
    """Finds the directory of the installed pyspark package, which is a complete Spark. Raises SetupError without it."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SetupError("pyspark is not installed in this environment; run `make setup`")
    return Path(spec.origin).parent


def coordinates() -> tuple[str, ...]:
    """Returns the COORDINATES of the installed Spark. Raises SetupError for a Spark that has none."""
    minor = ".".join(version("pyspark").split(".")[:2])
    if minor not in COORDINATES:
        raise SetupError(f"Spark {minor} is installed; workers run on Spark {' or '.join(COORDINATES)}")
    return COORDINATES[minor]


def environment() -> dict[str, str]:
    """Returns the variables that make a process start Spark's JVM with this Java, this Spark and this Python.

    Raises SetupError when there is no suitable Java.
    """
    return {
        "JAVA_HOME": str(WRAPPER),
        "LAKEHOUSE_JAVA_HOME": str(java_home()),
        "SPARK_HOME": str(spark_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
