"""Prepares workers for spark-submit, wherever EMR runs it: the code in S3, settings, Pipes' parameters.

What the hash of the code covers is decided in package.py; nothing here is particular to one service.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from dagster_pipes import (
    DAGSTER_PIPES_CONTEXT_CLI_ARGUMENT,
    DAGSTER_PIPES_CONTEXT_ENV_VAR,
    DAGSTER_PIPES_MESSAGES_CLI_ARGUMENT,
    DAGSTER_PIPES_MESSAGES_ENV_VAR,
)

from lakehouse_assets.environment.aws import bucket_and_key
from lakehouse_assets.environment.launchers.base import Attempt
from lakehouse_assets.environment.package import content_hash, sources
from lakehouse_assets.environment.sizes import Size

# A zip with the content of the wheel, without the metadata that only pip reads: PySpark passes .zip, .egg and .jar to
# the executors' Python, but no .whl (PACKAGE_EXTENSIONS in pyspark/core/context.py).
PACKAGE = "code.zip"
ENTRY_POINT = "worker.py"
# The earliest time a zip can hold: the same content gives the same bytes.
EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Shipped:
    """The URLs of the code in S3."""

    package: str
    """The URL for --py-files."""
    entry_point: str
    """The URL of the script to submit."""


def ship(s3: Any, prefix: str, worker: str, packages: tuple[str, ...]) -> Shipped:
    """Puts the code under ``<prefix>/<content hash>/``, unless it is there already.

    s3: a boto3 client. prefix: ``s3://bucket[/folder]``. worker: the module to run, whose ``__main__`` has a ``main``.
    packages: what the work needs beside this library, see Attempt.
    Several processes at once write the same bytes. Raises ClientError and BotoCoreError as boto3 does.
    """
    bucket, folder = bucket_and_key(prefix)
    place = f"{folder}/{content_hash(packages)}".lstrip("/")
    package, script = f"{place}/{PACKAGE}", f"{place}/{ENTRY_POINT}"
    there = {listed["Key"] for listed in s3.list_objects_v2(Bucket=bucket, Prefix=f"{place}/").get("Contents", ())}
    if package not in there:
        s3.put_object(Bucket=bucket, Key=package, Body=zipped(sources(packages)))
    if script not in there:
        s3.put_object(Bucket=bucket, Key=script, Body=entry_point(worker))
    return Shipped(f"s3://{bucket}/{package}", f"s3://{bucket}/{script}")


def entry_point(worker: str) -> bytes:
    """Returns a script that runs the worker's module."""
    return f"import sys\n\nfrom {worker}.__main__ import main\n\nsys.exit(main())\n".encode()


def zipped(files: Iterable[tuple[str, bytes]]) -> bytes:
    """Packs the files, (path, content), into a zip that Python can import from.

    Folders have entries of their own: without one Python finds no package there that has no ``__init__.py``.
    """
    buffer, folders = io.BytesIO(), set[str]()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files:
            for folder in accumulate(name.split("/")[:-1], "{}/{}".format):
                if folder not in folders:
                    folders.add(folder)
                    archive.writestr(zipfile.ZipInfo(f"{folder}/", EPOCH), b"")
            archive.writestr(zipfile.ZipInfo(name, EPOCH), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


PY_FILES = "spark.submit.pyFiles"
# What Spark adds to the heap for other memory: a tenth, at least 384 MiB (spark.executor.memoryOverhead,
# https://spark.apache.org/docs/4.1.0/configuration.html).
OVERHEAD_FACTOR, OVERHEAD_MIB = 0.1, 384


def options(attempt: Attempt, package: str, overhead: float = OVERHEAD_FACTOR) -> list[str]:
    """Returns the attempt's settings and the code as spark-submit's options.

    package: the code's URL, first in --py-files. overhead: as for sized().

    The worker gives the settings to its session too, except for files; but many are read only before a session exists
    (memory, archives, YARN's).
    """
    settings = {**sized(attempt.size, overhead), **attempt.spark_conf}
    files = ",".join(filter(None, (package, settings.pop(PY_FILES, ""))))
    given = [part for name, value in sorted(settings.items()) for part in ("--conf", f"{name}={value}")]
    return [*given, "--py-files", files]


def arguments(environment: Mapping[str, str]) -> list[str]:
    """Returns Pipes' variables as the entry point's arguments."""
    return [
        DAGSTER_PIPES_CONTEXT_CLI_ARGUMENT,
        environment[DAGSTER_PIPES_CONTEXT_ENV_VAR],
        DAGSTER_PIPES_MESSAGES_CLI_ARGUMENT,
        environment[DAGSTER_PIPES_MESSAGES_ENV_VAR],
    ]


def sized(size: Size, overhead: float = OVERHEAD_FACTOR) -> dict[str, str]:
    """Returns Spark's settings for a driver and executors of this size each; none where the size is left open.

    overhead: what Spark adds to the heap, as a share of it.
    """
    conf: dict[str, str] = {}
    if size.vcpus is not None:
        cores = str(max(1, round(size.vcpus)))
        conf |= {"spark.driver.cores": cores, "spark.executor.cores": cores}
    if size.memory_gib is not None:
        memory = size.memory_gib * 1024
        heap = f"{int(min(memory / (1 + overhead), memory - OVERHEAD_MIB))}m"
        conf |= {"spark.driver.memory": heap, "spark.executor.memory": heap}
    return conf
