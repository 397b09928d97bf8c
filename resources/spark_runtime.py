"""Spark for the workers: its extra jars, its class-data archive, and every Spark setting except the catalogs.
Plain Python: no Spark import, no Dagster; catalogs are set by the worker, as they hold secrets."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path

from resources.machine import WRAPPER, SetupError, cores, java_home, memory_bytes, scratch, task_cores
from resources.secrets import SENSITIVE
from resources.settings import Compute, Settings

__all__ = ["SetupError", "build", "class_data_archive", "coordinates", "environment", "jars", "java_home", "spark_conf"]

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
    # What EMR 7 has, where steps read s3:// through EMR's own file system.
    "3.5": (
        "org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.10.0",
        "org.apache.iceberg:iceberg-aws-bundle:1.10.0",
        *DRIVERS,
    ),
}
"""The jars a worker adds to Spark, by the minor version of the installed Spark. EMR itself brings its own."""
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
GIB = 2**30
HEAP_SHARE = 0.4
"""Of the machine's memory, for the heaps of all workers together: the rest is for Python, Dagster, off-heap
memory and the page cache. On 6 GiB it gives 2.4 GiB, and the 365-day write that dies at 1 GiB passes."""
HEAP_SHARE_ALONE = 0.7
"""Of a container's memory, for the heap of the one worker in it."""
HEAP_LIMITS = (1.5 * GIB, 96 * GIB)
BESIDE_HEAP = GIB
"""What is left beside a heap, half of a machine of less than two GiB: a JVM with a full heap of 1 GiB was measured to
take a third of one more, the worker's Python 150 MiB, and pages of files want room as well."""
EVERYWHERE = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "true",
    # The defaults of Spark 4, said for Spark 3.5 as well: a step means the same on both.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.ui.showConsoleProgress": "false",
    # Spark's own has neither OAuth2's credential nor most headers: its UI would show them beside each query.
    "spark.redaction.regex": SENSITIVE,
}
SUBMITTED = ("spark.submit.pyFiles", "spark.jars", "spark.files", "spark.archives")
"""What spark-submit was told and made more of, with the project's code and resolved packages: a session that was given
the same again would lose these, the executors' Python the project's code."""


def spark_home() -> Path:
    """The directory of the installed pyspark package, which is a complete Spark. Raises SetupError without it."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SetupError("pyspark is not installed in this environment; run `make setup`")
    return Path(spec.origin).parent


def coordinates() -> tuple[str, ...]:
    """COORDINATES of the installed Spark. Raises SetupError for a Spark that has none."""
    minor = ".".join(version("pyspark").split(".")[:2])
    if minor not in COORDINATES:
        raise SetupError(f"Spark {minor} is installed; workers run on Spark {' or '.join(COORDINATES)}")
    return COORDINATES[minor]


def jars(settings: Settings) -> list[Path]:
    """The resolved jars of coordinates(), in a fixed order. Raises SetupError when set-up has not run."""
    folder = _jar_folder(settings)
    if not folder.is_dir():
        raise SetupError(f"Iceberg's jars for Spark are not in {folder}; run `make setup`")
    return sorted(folder.glob("*.jar"))


def class_data_archive(settings: Settings) -> Path | None:
    """The class-data archive made with this Java, this Spark and these jars; None when there is none.

    Its name tells its size: a JVM that is given a truncated archive does not go on without, it crashes.
    """
    found = _archive_folder(settings).glob(f"{_archive_key(settings.cache, java_home())}-*.jsa")
    return next((a for a in found if a.stem.endswith(f"-{a.stat().st_size}")), None)


def driver_memory(memory: int, workers: int, share: float = HEAP_SHARE) -> str:
    """Heap of one worker as Spark spells it, for ``memory`` bytes of which ``workers`` take their ``share``."""
    low, high = HEAP_LIMITS
    room = max(memory - BESIDE_HEAP, memory / 2)
    return f"{int(min(max(memory * share / workers, low), high, room)) // 2**20}m"


def environment() -> dict[str, str]:
    """Variables a process needs to start Spark's JVM as we want it: this Java, this Spark, this Python.

    Raises SetupError when there is no suitable Java.
    """
    return {
        "JAVA_HOME": str(WRAPPER),
        "LAKEHOUSE_JAVA_HOME": str(java_home()),
        "SPARK_HOME": str(spark_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def spark_conf(settings: Settings, overrides: Mapping[str, str], compute: Compute = Compute.LOCAL) -> dict[str, str]:
    """All settings of a worker's session, catalogs left out, for the machine this runs on.

    overrides: the table's own settings; they win over the defaults, ``settings.spark_conf`` wins over both.
    compute: where the worker runs. EMR brings jars, memory and master itself; there only what Iceberg needs is set.
    Java options and the class path use the slots Spark keeps for administrators where it has one
    (``defaultJavaOptions``), so ``spark.driver.extraJavaOptions`` and ``spark.jars`` stay free for users.
    Raises SetupError when jars or Java are missing.
    """
    if compute in (Compute.EMR, Compute.EMR_SERVERLESS):
        defaults = EVERYWHERE
        overrides = {name: value for name, value in overrides.items() if name not in SUBMITTED}
    else:
        # A container is its worker's alone.
        workers, share = (1, HEAP_SHARE_ALONE) if compute is Compute.ECS else (settings.max_workers, HEAP_SHARE)
        memory = driver_memory(memory_bytes(), workers, share)
        defaults = _defaults(settings, class_data_archive(settings), scratch(settings.home))
        defaults["spark.driver.memory"] = memory
    return {**defaults, **overrides, **settings.spark_conf}


def build(settings: Settings, training: str, tell: Callable[[str], None] = print) -> None:
    """Set-up: resolve the jars and train the archive, each only if it is not there yet; ``tell`` hears about it.

    training: the module that loads the classes a worker loads; it is run with the path of a JSON plan (_train).

    Raises SetupError when the jars can't be had or Java is missing. An archive that can't be built is told
    about and done without.
    """
    _archive_key.cache_clear()
    java_home()
    if not _jar_folder(settings).is_dir():
        tell("fetching Spark's jars for Iceberg (130 MB, once) …")
        _resolve(settings)
    if class_data_archive(settings) is None:
        tell("training the class-data archive, so that workers start faster (half a minute, once) …")
        if problem := _train(settings, training):
            tell(f"no class-data archive, workers start slower:\n{problem}")


def _defaults(settings: Settings, archive: Path | None, folder: Path) -> dict[str, str]:
    """folder: for temporary files; there is one."""
    return {
        "spark.master": f"local[{task_cores() or '*'}]",
        "spark.driver.memory": driver_memory(memory_bytes(), settings.max_workers),
        # On the application class path, not in spark.jars: there the archive covers them and nothing is copied.
        "spark.driver.extraClassPath": ":".join(map(str, jars(settings))),
        "spark.driver.defaultJavaOptions": " ".join(_java_options(archive, folder)),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "spark-warehouse"),
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "spark.sql.shuffle.partitions": str(max(2, cores())),
        "spark.ui.enabled": "false",
        **EVERYWHERE,
    }


def _java_options(archive: Path | None, folder: Path) -> Iterator[str]:
    yield "-Duser.timezone=UTC"
    # Native libraries that drivers and codecs unpack, files that S3FileIO is about to upload.
    yield f'"-Djava.io.tmpdir={folder}"'
    yield f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
    # A JVM that can't use its archive goes on without; its remarks about that are no news to anybody.
    yield "-Xshare:auto -Xlog:disable -Xlog:all=error:stderr"
    if archive is not None:
        yield f'"-XX:SharedArchiveFile={archive}"'


def _jar_folder(settings: Settings) -> Path:
    return settings.cache / "jars" / _digest(coordinates() + EXCLUDED)


def _archive_folder(settings: Settings) -> Path:
    return settings.cache / "archives"


@cache
def _archive_key(cache_folder: Path, home: Path) -> str:
    # Path, size and time of every file: what the JVM itself compares before it takes an archive. Like the JVM in whole
    # seconds, which is what is left of times in an image that was pushed and pulled.
    files = [*home.rglob("libjvm.*"), *sorted((spark_home() / "jars").glob("*.jar"))]
    files += sorted((cache_folder / "jars" / _digest(coordinates() + EXCLUDED)).glob("*.jar"))
    stats = [(f, f.stat()) for f in files]
    return _digest([version("pyspark"), *(f"{f} {s.st_size} {int(s.st_mtime)}" for f, s in stats)])


def _digest(parts: object) -> str:
    return hashlib.sha256(json.dumps(list(parts)).encode()).hexdigest()[:16]  # type: ignore[call-overload]


def _resolve(settings: Settings) -> None:
    """Let Spark's own resolver fetch the jars, into a directory that gets its name only when it is complete."""
    target = _jar_folder(settings)
    with _beside(target) as scratch:
        script = scratch / "nothing.py"
        script.write_text("")
        command = [spark_home() / "bin" / "spark-submit", "--packages", ",".join(coordinates())]
        # A proxy's repositories or Ivy settings are the user's to give; they must reach this JVM as well.
        forwarded = {k: v for k, v in settings.spark_conf.items() if k.startswith("spark.jars.")}
        ours = {"spark.jars.ivy": str(scratch / "ivy"), "spark.jars.excludes": ",".join(EXCLUDED)}
        for name, value in {**forwarded, **ours}.items():
            command += ["--conf", f"{name}={value}"]
        # Ivy asks ~/.m2 first, and a POM there without its jar makes the whole resolution fail.
        options = f'"-Duser.home={scratch}"'
        done = _run([*command, script], {"SPARK_SUBMIT_OPTS": options})
        found = scratch / "ivy" / "jars"
        if done.returncode or not found.is_dir():
            raise SetupError(
                f"Spark could not resolve its jars ({', '.join(coordinates())}) from Maven Central; check the network, "
                "or give a mirror by LAKEHOUSE_SPARK__spark__jars__repositories. It said:\n" + _tail(done.stdout)
            )
        _publish(found, target)


def _train(settings: Settings, training: str) -> str | None:
    """Run a small session like a worker's in a JVM that archives the classes it loaded when it exits.

    Returns what went wrong, None when the archive is there.
    """
    key = _archive_key(settings.cache, java_home())
    with _beside(_archive_folder(settings) / key) as scratch:
        archive = scratch / "classes.jsa"
        conf = _defaults(settings, None, scratch)
        conf["spark.driver.memory"] = "1g"
        conf["spark.driver.extraJavaOptions"] = f'"-XX:ArchiveClassesAtExit={archive}"'
        plan = scratch / "training.json"
        plan.write_text(json.dumps({"conf": conf, "scratch": str(scratch)}))
        done = _run([sys.executable, "-m", training, plan], {})
        if done.returncode or not archive.is_file():
            return _tail(done.stdout)
        _publish(archive, _archive_folder(settings) / f"{key}-{archive.stat().st_size}.jsa")
    return None


def _run(command: list[object], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        env={**os.environ, **environment(), **env},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A scratch directory on the target's own file system, so that the finished thing can be renamed into place."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".partial-", dir=target.parent))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _publish(finished: Path, target: Path) -> None:
    try:
        finished.rename(target)
    except OSError:
        if not target.exists():  # otherwise another set-up was faster, with the same content
            raise


def _tail(text: str, lines: int = 30) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])
