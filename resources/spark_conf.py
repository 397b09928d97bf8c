"""Makes every Spark setting of a worker's session except the catalogs, for the machine it runs on.

Catalogs are set by the worker, as they hold secrets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from resources.class_data import class_data_archive
from resources.computes import find_compute
from resources.machine import cores, memory_bytes, scratch, task_cores
from resources.secrets import SENSITIVE
from resources.settings import Settings
from resources.spark_jars import jars

GIB = 2**30
HEAP_SHARE = 0.4
"""The share of the machine's memory for the heaps of all workers together: the rest is for Python, Dagster, off-heap
memory and the page cache. On 6 GiB it gives 2.4 GiB; a write of 365 days fails with 1 GiB and succeeds with that."""
HEAP_SHARE_ALONE = 0.7
"""The share of a container's memory for the heap of the one worker in it."""
HEAP_LIMITS = (1.5 * GIB, 96 * GIB)
BESIDE_HEAP = GIB
"""The memory that is left beside a heap; on a machine of less than 2 GiB it is half of the memory. Measured: a JVM with
a full heap of 1 GiB takes a third of a GiB more, the worker's Python 150 MiB; the page cache needs room as well."""
EVERYWHERE = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "true",
    # The defaults of Spark 4, set for Spark 3.5 as well: a step means the same on both.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.ui.showConsoleProgress": "false",
    # Spark's own pattern has neither OAuth2's credential nor most headers: its UI would show them beside each query.
    "spark.redaction.regex": SENSITIVE,
}
SUBMITTED = ("spark.submit.pyFiles", "spark.jars", "spark.files", "spark.archives")
"""Settings that spark-submit extends with the project's code and resolved packages, which the table's own values would
replace in a session: the executors' Python would lose the project's code."""


def driver_memory(memory: int, workers: int, share: float = HEAP_SHARE) -> str:
    """Returns one worker's heap as Spark spells it, where ``workers`` together take ``share`` of ``memory`` bytes."""
    low, high = HEAP_LIMITS
    room = max(memory - BESIDE_HEAP, memory / 2)
    return f"{int(min(max(memory * share / workers, low), high, room)) // 2**20}m"


def spark_conf(settings: Settings, overrides: Mapping[str, str], compute: str = "local") -> dict[str, str]:
    """Returns all settings of a worker's session, catalogs left out, for the machine this runs on.

    overrides: the table's own settings; they win over the defaults, ``settings.spark_conf`` wins over both.
    compute: where the worker runs.
    Java options are in Spark's setting for administrators (``defaultJavaOptions``) and jars on the class path, so that
    ``spark.driver.extraJavaOptions`` and ``spark.jars`` stay free for users.
    Raises SetupError when jars or Java are missing.
    """
    kind = find_compute(compute)
    if kind.brings_spark:
        defaults = EVERYWHERE
        overrides = {name: value for name, value in overrides.items() if name not in SUBMITTED}
    else:
        workers, share = (1, HEAP_SHARE_ALONE) if kind.remote else (settings.max_workers, HEAP_SHARE)
        heap = driver_memory(memory_bytes(), workers, share)
        defaults = machine_conf(settings, heap, class_data_archive(settings), scratch(settings.home))
    return {**defaults, **overrides, **settings.spark_conf}


def machine_conf(settings: Settings, heap: str, archive: Path | None, folder: Path) -> dict[str, str]:
    """Returns Spark's settings on this machine. heap: as Spark spells it. folder: for temporary files; must exist."""
    return {
        "spark.master": f"local[{task_cores() or '*'}]",
        "spark.driver.memory": heap,
        # On the application class path, not in spark.jars: there the archive covers them and nothing is copied.
        "spark.driver.extraClassPath": ":".join(map(str, jars(settings))),
        "spark.driver.defaultJavaOptions": " ".join(java_options(archive, folder)),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "spark-warehouse"),
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "spark.sql.shuffle.partitions": str(max(2, cores())),
        "spark.ui.enabled": "false",
        **EVERYWHERE,
    }


def java_options(archive: Path | None, folder: Path) -> Iterator[str]:
    """Yields the JVM's options, quoted as Spark splits them. folder: for temporary files."""
    yield "-Duser.timezone=UTC"
    # For native libraries that drivers and codecs unpack, and files that S3FileIO is about to upload.
    yield f'"-Djava.io.tmpdir={folder}"'
    yield f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
    # A JVM that can't use its archive goes on without it; its remarks about that help nobody.
    yield "-Xshare:auto -Xlog:disable -Xlog:all=error:stderr"
    if archive is not None:
        yield f'"-XX:SharedArchiveFile={archive}"'
