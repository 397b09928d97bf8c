"""Makes spark-submit's arguments for a worker on EMR and on EMR Serverless: settings, code, Pipes' parameters.

Nothing here is particular to one service.
"""

from __future__ import annotations

from collections.abc import Mapping

from dagster_pipes import (
    DAGSTER_PIPES_CONTEXT_CLI_ARGUMENT,
    DAGSTER_PIPES_CONTEXT_ENV_VAR,
    DAGSTER_PIPES_MESSAGES_CLI_ARGUMENT,
    DAGSTER_PIPES_MESSAGES_ENV_VAR,
)

from resources.launchers.base import Attempt
from resources.sizes import Size

PY_FILES = "spark.submit.pyFiles"
# What Spark adds to the heap for other memory: a tenth, at least 384 MiB (spark.executor.memoryOverhead,
# https://spark.apache.org/docs/4.1.0/configuration.html).
OVERHEAD_FACTOR, OVERHEAD_MIB = 1.1, 384


def options(attempt: Attempt, package: str) -> list[str]:
    """Returns the attempt's settings and the code as spark-submit's options.

    package: the code's URL, first in --py-files.

    The worker gives the settings to its session too, except for files; but many are read only before a session exists
    (memory, archives, YARN's).
    """
    settings = {**sized(attempt.size), **attempt.spark_conf}
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


def sized(size: Size) -> dict[str, str]:
    """Returns Spark's settings for a driver and executors of this size each; none where the size is left open."""
    conf: dict[str, str] = {}
    if size.vcpus is not None:
        cores = str(max(1, round(size.vcpus)))
        conf |= {"spark.driver.cores": cores, "spark.executor.cores": cores}
    if size.memory_gib is not None:
        memory = size.memory_gib * 1024
        heap = f"{int(min(memory / OVERHEAD_FACTOR, memory - OVERHEAD_MIB))}m"
        conf |= {"spark.driver.memory": heap, "spark.executor.memory": heap}
    return conf
