"""What spark-submit is told for a worker, on EMR and on EMR Serverless: settings, code, Pipes' parameters.
No words of either service; what can wait for the session is set by the worker (resources/spark_runtime.py)."""

from __future__ import annotations

from collections.abc import Mapping

from dagster_pipes import (
    DAGSTER_PIPES_CONTEXT_CLI_ARGUMENT,
    DAGSTER_PIPES_CONTEXT_ENV_VAR,
    DAGSTER_PIPES_MESSAGES_CLI_ARGUMENT,
    DAGSTER_PIPES_MESSAGES_ENV_VAR,
)

from resources.launchers.base import Attempt, Size

PY_FILES = "spark.submit.pyFiles"
# What Spark asks for beside the heap: a tenth, at least 384 MiB (spark.executor.memoryOverhead,
# https://spark.apache.org/docs/4.1.0/configuration.html).
OVERHEAD_FACTOR, OVERHEAD_MIB = 1.1, 384


def options(attempt: Attempt, package: str) -> list[str]:
    """The settings and the code as spark-submit's options.

    All of the attempt's settings: many are read only before the session exists (memory, archives, YARN's). They
    hold no secrets; the worker gives them to its session as well, but for files. package: for --py-files, before the
    user's own.
    """
    settings = {**sized(attempt.size), **attempt.spark_conf}
    files = ",".join(filter(None, (package, settings.pop(PY_FILES, ""))))
    given = [part for name, value in sorted(settings.items()) for part in ("--conf", f"{name}={value}")]
    return [*given, "--py-files", files]


def arguments(environment: Mapping[str, str]) -> list[str]:
    """Pipes' parameters as the entry point's arguments. environment: as Pipes would have it."""
    return [
        DAGSTER_PIPES_CONTEXT_CLI_ARGUMENT,
        environment[DAGSTER_PIPES_CONTEXT_ENV_VAR],
        DAGSTER_PIPES_MESSAGES_CLI_ARGUMENT,
        environment[DAGSTER_PIPES_MESSAGES_ENV_VAR],
    ]


def sized(size: Size) -> dict[str, str]:
    """Spark's settings for a driver and executors of this size each; nothing where the size is left open."""
    conf = {}
    if size.vcpus is not None:
        cores = str(max(1, round(size.vcpus)))
        conf |= {"spark.driver.cores": cores, "spark.executor.cores": cores}
    if size.memory_gib is not None:
        memory = size.memory_gib * 1024
        heap = f"{int(min(memory / OVERHEAD_FACTOR, memory - OVERHEAD_MIB))}m"
        conf |= {"spark.driver.memory": heap, "spark.executor.memory": heap}
    return conf
