"""Sets up Spark on this machine: jars, class-data archive, session settings."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import locale
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path

from lakehouse_assets.environment.computes import find_compute
from lakehouse_assets.environment.env_reader import SENSITIVE
from lakehouse_assets.environment.machine import (
    MIB,
    WRAPPER,
    SetupError,
    command,
    cores,
    java_home,
    memory_bytes,
    scratch,
    task_cores,
)
from lakehouse_assets.environment.settings import Settings

LOCAL_FILES = "com.globalmentor:hadoop-bare-naked-local-fs:0.1.0"
DRIVERS = ("org.xerial:sqlite-jdbc:3.50.3.0", "org.postgresql:postgresql:42.7.7")
COORDINATES = (
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "org.apache.iceberg:iceberg-aws-bundle:1.12.0",
    # Steps read s3:// through Hadoop: its S3 client, in the version of Spark's Hadoop, and the two parts of the AWS SDK
    # that Iceberg's bundle leaves out, in the bundle's version.
    "org.apache.hadoop:hadoop-aws:3.4.2",
    "software.amazon.awssdk:s3-transfer-manager:2.54.17",
    "software.amazon.awssdk:apache-client:2.54.17",
    LOCAL_FILES,
    *DRIVERS,
)
"""Jars for the Spark that this package installs; EMR brings its own."""
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
"""Spark or Iceberg's bundle already has these, or our S3A settings don't use them."""


JARS_BYTES = 280 * MIB
"""Free space for twice the jars: Ivy keeps its copies until they are in place."""
# Free space for the class-data archive.
ARCHIVE_BYTES = 220 * MIB


def spark_home() -> Path:
    """Finds the installed pyspark. Raises SetupError without it."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SetupError("pyspark is not installed in this environment: `pip install pyspark==4.1.*`")
    return Path(spec.origin).parent


def environment() -> dict[str, str]:
    """Returns variables for Spark's JVM. Raises SetupError if there is no suitable Java."""
    return {
        "JAVA_HOME": str(WRAPPER),
        "LAKEHOUSE_JAVA_HOME": str(java_home()),
        "SPARK_HOME": str(spark_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # In another encoding (the C locale), Java can't open file names that Python can.
        **({} if locale.getencoding().lower() in ("utf-8", "utf8") else {"LC_ALL": "C.UTF-8"}),
    }


def jar_folder(cache: Path) -> Path:
    """Returns the folder for the jars of COORDINATES; other coordinates would have another folder."""
    return cache / "jars" / digest(COORDINATES + EXCLUDED)


def jars(settings: Settings) -> list[Path]:
    """Finds the jars in a fixed order. Raises SetupError if setup has not run."""
    folder = jar_folder(settings.cache)
    if not folder.is_dir():
        raise SetupError(f"Iceberg's jars for Spark are not in {folder}; run `{command('setup')}`")
    return sorted(folder.glob("*.jar"))


def fetch_jars(settings: Settings) -> None:
    """Fetches the jars. Raises SetupError as resolve(), or if the disk is too full."""
    if problem := no_room(settings.cache, JARS_BYTES):
        raise SetupError(f"Spark's jars can't be fetched: {problem}")
    resolve(settings, COORDINATES, jar_folder(settings.cache), EXCLUDED)


def resolve(settings: Settings, packages: Sequence[str], target: Path, excluded: Sequence[str] = ()) -> None:
    """Fetches packages and dependencies from Maven Central, by Spark's resolver.

    Raises SetupError with the resolver's last lines.
    """
    with scratch_beside(target) as folder:
        # spark-submit resolves packages only for a program.
        script = folder / "nothing.py"
        script.write_text("")
        call: list[object] = [spark_home() / "bin" / "spark-submit", "--packages", ",".join(packages)]
        # The user may need own repositories or Ivy settings, such as for a proxy.
        conf = {k: v for k, v in settings.spark_conf.items() if k.startswith("spark.jars.")}
        conf |= {"spark.jars.ivy": str(folder / "ivy"), "spark.jars.excludes": ",".join(excluded)}
        for name, value in conf.items():
            call += ["--conf", f"{name}={value}"]
        # Ivy looks into ~/.m2 first, and a POM there without its jar makes the whole resolution fail: so another home.
        own = os.environ.get("SPARK_SUBMIT_OPTS", "")  # a proxy, for example
        done = run([*call, script], SPARK_SUBMIT_OPTS=f"{own} {quoted(f'-Duser.home={folder}')}")
        found = folder / "ivy" / "jars"
        if done.returncode or not found.is_dir():
            raise SetupError(
                f"Spark could not resolve its jars ({', '.join(packages)}) from Maven Central; check the network, "
                "or name a mirror in LAKEHOUSE_SPARK__spark__jars__repositories. Its output ends with:\n"
                + last_lines(done.stdout)
            )
        put_in_place(found, target)


def no_room(cache: Path, needed: int) -> str | None:
    """Says that the cache's disk has less than ``needed`` bytes free; None if it has them."""
    cache.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(cache).free) >= needed:
        return None
    return (
        f"{free / MIB:,.0f} MiB are free on the disk of {cache}, but {needed / MIB:,.0f} are needed; free up space "
        "there, or point LAKEHOUSE_CACHE to another disk"
    )


@contextmanager
def scratch_beside(target: Path) -> Iterator[Path]:
    """Yields a directory on the target's file system, from which the result can be renamed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=target.parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def put_in_place(result: Path, target: Path) -> None:
    """Renames ``result``. If another set-up was faster, its equal result stays."""
    try:
        result.rename(target)
    except OSError:
        if not target.exists():
            raise


def run(command: Iterable[object], **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in Spark's environment; ``stdout`` includes stderr."""
    return subprocess.run(
        list(map(str, command)),
        env={**os.environ, **environment(), **env},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def last_lines(text: str) -> str:
    """Returns the last 30 lines."""
    return "\n".join(text.strip().splitlines()[-30:])


def digest(parts: Iterable[str]) -> str:
    """Returns 16 hex digits that identify these parts."""
    return hashlib.sha256(json.dumps(list(parts)).encode()).hexdigest()[:16]


ARCHIVES = "archives"


def class_data_archive(settings: Settings) -> Path | None:
    """Finds the archive for this Java, this Spark and these jars, with which a JVM starts faster; None without one.

    Its name contains its size: a JVM crashes over a truncated archive.
    """
    found = (settings.cache / ARCHIVES).glob(f"{archive_key(settings.cache, java_home())}-*.jsa")
    return next((a for a in found if a.stem.endswith(f"-{a.stat().st_size}")), None)


@cache
def archive_key(cache_folder: Path, home: Path) -> str:
    """Returns 16 hex digits over everything that an archive depends on."""
    # The JVM compares every file's path, size and time before it uses an archive. Whole seconds: pushing and pulling an
    # image loses the fractions.
    files = [*sorted(home.rglob("libjvm.*")), *sorted((spark_home() / "jars").glob("*.jar"))]
    files += sorted(jar_folder(cache_folder).glob("*.jar"))
    stats = [(f, f.stat()) for f in files]
    return digest([version("pyspark"), *(f"{f} {s.st_size} {int(s.st_mtime)}" for f, s in stats)])


def train_archive(settings: Settings, module: str, conf: Callable[[Path], Mapping[str, str]]) -> str | None:
    """Runs a small session in a JVM that archives its classes at exit. Returns the output's end if it fails.

    module: runs the session; its argument is a JSON file with ``conf`` and a ``scratch`` directory. conf: makes the
    session's settings for that directory.
    """
    key = archive_key(settings.cache, java_home())
    with scratch_beside(settings.cache / ARCHIVES / key) as folder:
        archive = folder / "classes.jsa"
        writing = {"spark.driver.extraJavaOptions": quoted(f"-XX:ArchiveClassesAtExit={archive}")}
        plan = folder / "training.json"
        plan.write_text(json.dumps({"conf": {**conf(folder), **writing}, "scratch": str(folder)}))
        done = run([sys.executable, "-m", module, plan])
        if done.returncode or not archive.is_file():
            return last_lines(done.stdout)
        put_in_place(archive, settings.cache / ARCHIVES / f"{key}-{archive.stat().st_size}.jsa")
    return None


COMPILE_LATER = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
"""Ten times the JVM's thresholds for its second compiler (C2), which competes with the work on few cores and pays only
in long-running methods. Measured in docs/why.md."""
GIB = 2**30
HEAP_SHARE = 0.4
"""The share of memory for all heaps; Python, Dagster, off-heap memory and the page cache need the rest. 6 GiB give 2.4
GiB; a write of 365 days fails with 1 GiB and succeeds with that."""
HEAP_SHARE_ALONE = 0.7
"""For the only worker of a container."""
HEAP_LIMITS = (1.5 * GIB, 96 * GIB)
"""The least and the most heap of one worker."""
BESIDE_HEAP = GIB
"""The least memory outside the heap; below 2 GiB, half of all memory. Measured: a JVM with a full heap of 1 GiB takes
another third of a GiB, the worker's Python 150 MiB; the page cache needs room too."""
# Settings on all computes, also those where the service starts Spark.
EVERYWHERE = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "true",
    # The defaults of Spark 4, so that a step means the same on Spark 3.5.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.ui.showConsoleProgress": "false",
    # Spark's pattern misses OAuth2's credential and most headers: its UI would show them with each query.
    "spark.redaction.regex": SENSITIVE,
}
SUBMITTED = ("spark.submit.pyFiles", "spark.jars", "spark.files", "spark.archives")
"""Left out if a service starts Spark: spark-submit extends them with the project's code. In a session, the table's
values would replace these, and the executors' Python would lose the code."""


def driver_memory(memory: int, workers: int, share: float = HEAP_SHARE) -> str:
    """Returns one worker's heap, such as ``2457m``, if ``workers`` together take ``share`` of ``memory`` bytes."""
    low, high = HEAP_LIMITS
    room = max(memory - BESIDE_HEAP, memory / 2)
    return f"{int(min(max(memory * share / workers, low), high, room)) // MIB}m"


def spark_conf(
    settings: Settings, overrides: Mapping[str, str], compute: str = "local", folder: Path | None = None
) -> dict[str, str]:
    """Returns a session's settings on this machine, without catalogs.

    overrides: the table's own settings, which win over the defaults; ``settings.spark_conf`` wins over both. folder:
    for temporary files; None for the home's. ``spark.driver.extraJavaOptions`` and ``spark.jars`` stay free for users:
    our Java options are in ``defaultJavaOptions`` and our jars on the class path. Raises SetupError if jars or Java are
    missing.
    """
    kind = find_compute(compute)
    own = {**overrides, **settings.spark_conf}
    if kind.brings_spark:
        return {**EVERYWHERE, **{name: value for name, value in own.items() if name not in SUBMITTED}}
    workers, share = (1, HEAP_SHARE_ALONE) if kind.remote else (settings.max_workers, HEAP_SHARE)
    heap = driver_memory(memory_bytes(), workers, share)
    return {**machine_conf(settings, heap, class_data_archive(settings), folder or scratch(settings.home)), **own}


def machine_conf(settings: Settings, heap: str, archive: Path | None, folder: Path) -> dict[str, str]:
    """Returns Spark's settings here. folder: for temporary files; must exist."""
    return {
        "spark.master": f"local[{task_cores() or '*'}]",
        "spark.driver.memory": heap,
        # On the class path, unlike in spark.jars, the archive covers them and nothing is copied.
        "spark.driver.extraClassPath": ":".join(map(str, jars(settings))),
        "spark.driver.defaultJavaOptions": " ".join(java_options(archive, folder)),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "spark-warehouse"),
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        # Hadoop's own starts a process (chmod) for each file, and one for the file's checksums.
        "spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem",
        "spark.sql.shuffle.partitions": str(max(2, cores())),
        "spark.ui.enabled": "false",
        **EVERYWHERE,
    }


def java_options(archive: Path | None, folder: Path) -> Iterator[str]:
    """Yields the JVM's options, quoted."""
    yield "-Duser.timezone=UTC"
    # For native libraries that drivers and codecs unpack, and for S3FileIO's uploads.
    yield quoted(f"-Djava.io.tmpdir={folder}")
    yield f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
    # A JVM that can't use its archive runs without it; its warnings help nobody.
    yield "-Xshare:auto -Xlog:disable -Xlog:all=error:stderr"
    yield from COMPILE_LATER
    if archive is not None:
        yield quoted(f"-XX:SharedArchiveFile={archive}")


def quoted(option: str) -> str:
    """Quotes a JVM option for CommandBuilderUtils.parseOptionString."""
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def build(settings: Settings, training: str) -> None:
    """Fetches jars and trains the archive if missing; prints progress. training: the module for train_archive().

    Raises SetupError without jars or Java. Without an archive, workers start slower.
    """
    archive_key.cache_clear()  # an earlier call in this process may have found no jars
    java_home()
    if not jar_folder(settings.cache).is_dir():
        print("fetching Spark's jars for Iceberg (130 MB, once) …")
        fetch_jars(settings)
    if class_data_archive(settings) is None:
        print("building the class-data archive, which makes workers start faster (half a minute, once) …")
        problem = no_room(settings.cache, ARCHIVE_BYTES) or train_archive(
            settings, training, lambda folder: machine_conf(settings, "1g", None, folder)
        )
        if problem:
            print(f"no class-data archive was built, so workers start slower:\n{problem}")
