"""Spark's settings come from one place and this machine; jars and archive are taken only whole and fitting."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from resources import machine, spark_runtime
from resources.machine import SetupError, java_home, java_version
from resources.settings import Compute, Settings
from tests.support.fakes.task_metadata import task_metadata

GIB = 2**30


@pytest.fixture
def fake_jars(settings: Settings, tmp_path: Path) -> Settings:
    """Settings with a cache that looks resolved."""
    settings = dataclasses.replace(settings, cache=tmp_path / "cache")
    folder = spark_runtime._jar_folder(settings)
    folder.mkdir(parents=True)
    (folder / "b.jar").touch()
    (folder / "a.jar").touch()
    return settings


def _java(folder: Path, version: str) -> Path:
    """A Java home that tells ``version`` the way a JDK does."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "java").write_text("#!/bin/sh\n")
    (folder / "bin" / "java").chmod(0o755)
    (folder / "release").write_text(f'IMPLEMENTOR="nobody"\nJAVA_VERSION="{version}"\n')
    return folder


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
    assert spark_runtime.driver_memory(memory, workers) == heap


@pytest.mark.parametrize(
    ("memory", "heap"), [(GIB // 2, "256m"), (GIB, "512m"), (2 * GIB, "1024m"), (3 * GIB, "2048m"), (8 * GIB, "5734m")]
)
def test_a_container_of_its_own_keeps_a_gib_beside_the_heap_or_half_of_what_is_less(memory: int, heap: str) -> None:
    assert spark_runtime.driver_memory(memory, 1, spark_runtime.HEAP_SHARE_ALONE) == heap


def test_memory_is_the_tightest_limit_around_this_process(tmp_path: Path) -> None:
    for folder, limit in {"": "max", "a": str(4 * GIB), "a/b": str(8 * GIB)}.items():
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "memory.max").write_text(f"{limit}\n")
    membership = tmp_path / "cgroup"
    membership.write_text("0::/a/b\n")
    assert min(machine._cgroup_limits(tmp_path, membership)) == 4 * GIB
    (tmp_path / "memory" / "a").mkdir(parents=True)
    (tmp_path / "memory" / "a" / "memory.limit_in_bytes").write_text(str(2 * GIB))
    membership.write_text("5:cpu:/x\n4:memory:/a\n")
    assert machine._cgroup_limits(tmp_path, membership) == [2 * GIB]


@pytest.fixture
def in_task(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Lets this process see a task metadata endpoint with these documents, by their paths."""
    told: dict[str, dict[str, object]] = {}
    monkeypatch.setattr(machine, "METADATA_WAITS", (0.0, 0.01))
    with task_metadata(told.get) as address:

        def tell(documents: dict[str, dict[str, object]]) -> None:
            told.update(documents)
            monkeypatch.setenv("ECS_CONTAINER_METADATA_URI_V4", address)

        yield tell


@pytest.mark.parametrize(
    ("task", "container", "memory"),
    [
        ({"CPU": 0.25, "Memory": 1024}, {"CPU": 2}, GIB),
        ({"CPU": 0.25, "Memory": 1024}, {"CPU": 2, "Memory": 0}, GIB),
        ({"CPU": 1, "Memory": 1024}, {"CPU": 512, "Memory": 512}, GIB // 2),
    ],
)
def test_an_ecs_task_is_as_large_as_its_metadata_says(
    fake_jars: Settings,
    in_task: Callable[..., None],
    task: dict[str, float],
    container: dict[str, float],
    memory: int,
) -> None:
    in_task({"/task": {"Family": "lakehouse", "Limits": task}, "": {"Name": "worker", "Limits": container}})
    assert (machine.memory_bytes(), machine.cores()) == (memory, 1)
    assert spark_runtime._defaults(fake_jars, None, fake_jars.home / "tmp")["spark.master"] == "local[1]"


@pytest.mark.parametrize(
    ("documents", "warnings"),
    [({"/task": {"Family": "lakehouse"}, "": {"Name": "worker"}}, []), ({"/task": {}}, ["WARNING"])],
    ids=["without limits", "out of reach"],
)
def test_where_ecs_says_nothing_the_machine_does(
    fake_jars: Settings,
    in_task: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    documents: dict[str, object],
    warnings: list[str],
) -> None:
    machines = (machine.memory_bytes(), machine.cores())
    in_task(documents)
    assert (machine.memory_bytes(), machine.cores()) == machines
    assert spark_runtime._defaults(fake_jars, None, fake_jars.home / "tmp")["spark.master"] == "local[*]"
    assert [record.levelname for record in caplog.records] == warnings


@pytest.mark.parametrize(("text", "version"), [("17.0.15", 17), ("21", 21), ("1.8.0_412", 8), ("22-ea", 22)])
def test_java_tells_its_version(tmp_path: Path, text: str, version: int) -> None:
    assert java_version(_java(tmp_path / "java", text)) == version


def test_an_old_java_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAKEHOUSE_JAVA_HOME", raising=False)
    monkeypatch.setenv("JAVA_HOME", str(_java(tmp_path / "eleven", "11.0.2")))
    with pytest.raises(SetupError, match=r"JAVA_HOME=.*eleven is Java 11, Spark needs 17"):
        java_home()


def test_no_java_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LAKEHOUSE_JAVA_HOME", "JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match=r"no Java found.*install a Java 17 or later"):
        java_home()


def test_the_wrapper_is_never_taken_for_a_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(machine.WRAPPER))
    monkeypatch.delenv("LAKEHOUSE_JAVA_HOME", raising=False)
    assert java_home() != machine.WRAPPER  # whose java would run itself without end
    monkeypatch.setenv("LAKEHOUSE_JAVA_HOME", str(machine.WRAPPER))
    assert java_home() != machine.WRAPPER


def test_java_on_the_path_is_found_behind_its_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LAKEHOUSE_JAVA_HOME", "JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)
    home = _java(tmp_path / "seventeen", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert java_home() == home


def test_missing_jars_say_what_to_run(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="run `make setup`"):
        spark_runtime.jars(dataclasses.replace(settings, cache=tmp_path))


def test_jars_come_in_one_order(fake_jars: Settings) -> None:
    assert [jar.name for jar in spark_runtime.jars(fake_jars)] == ["a.jar", "b.jar"]


def test_jars_are_those_of_the_installed_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_runtime, "version", lambda package: "3.5.6")
    assert "org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.10.0" in spark_runtime.coordinates()
    monkeypatch.setattr(spark_runtime, "version", lambda package: "4.0.1")
    with pytest.raises(SetupError, match=r"Spark 4\.0 is installed; workers run on Spark 4\.1 or 3\.5"):
        spark_runtime.coordinates()


def test_a_table_overrides_the_defaults_and_the_environment_overrides_both(fake_jars: Settings) -> None:
    default = spark_runtime._defaults(fake_jars, None, fake_jars.home / "tmp")
    ours = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "9"}
    settings = dataclasses.replace(fake_jars, spark_conf={"spark.driver.memory": "2g"})
    conf = {**default, **ours, **settings.spark_conf}
    assert conf["spark.driver.memory"] == "2g"
    assert conf["spark.sql.session.timeZone"] == "UTC"


def test_a_session_on_emr_leaves_to_spark_submit_what_that_made_of_its_files(settings: Settings) -> None:
    told = {
        "spark.submit.pyFiles": "s3://bucket/own.zip",
        "spark.archives": "s3://bucket/env.tar.gz#env",
        "spark.x": "y",
    }
    conf = spark_runtime.spark_conf(settings, told, Compute.EMR)
    assert conf.keys() & told.keys() == {"spark.x"}


def test_settings_hold_no_catalog_and_no_absent_archive(fake_jars: Settings) -> None:
    conf = spark_runtime._defaults(fake_jars, None, fake_jars.home / "tmp")
    assert not [name for name in conf if name.startswith("spark.sql.catalog.")]
    assert "SharedArchiveFile" not in conf["spark.driver.defaultJavaOptions"]
    assert conf["spark.driver.extraClassPath"].endswith("b.jar")


@pytest.mark.spark
def test_an_archive_belongs_to_the_jars_it_was_made_with(fake_jars: Settings) -> None:
    spark_runtime._archive_key.cache_clear()
    key = spark_runtime._archive_key(fake_jars.cache, java_home())
    archive = spark_runtime._archive_folder(fake_jars) / f"{key}-5.jsa"
    archive.parent.mkdir()
    archive.write_text("12345")
    assert spark_runtime.class_data_archive(fake_jars) == archive
    archive.write_text("1234")  # a truncated one crashes the JVM
    assert spark_runtime.class_data_archive(fake_jars) is None
    archive.write_text("12345")
    jar = spark_runtime._jar_folder(fake_jars) / "a.jar"
    os.utime(jar, ns=(0, jar.stat().st_mtime_ns // 10**9 * 10**9))  # as an image's registry returns files
    spark_runtime._archive_key.cache_clear()
    assert spark_runtime.class_data_archive(fake_jars) == archive
    jar.write_text("another")
    spark_runtime._archive_key.cache_clear()
    assert spark_runtime.class_data_archive(fake_jars) is None


@pytest.mark.spark
@pytest.mark.parametrize("damage", ["missing", "empty", "foreign"])
def test_a_java_that_cannot_use_its_archive_goes_on_in_silence(tmp_path: Path, damage: str) -> None:
    archive = tmp_path / "with a space.jsa"
    if damage != "missing":
        archive.write_bytes(os.urandom(100_000) if damage == "foreign" else b"")
    options = shlex.split(" ".join(spark_runtime._java_options(archive, tmp_path)))
    done = subprocess.run([java_home() / "bin" / "java", *options, "--version"], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith("openjdk")


@pytest.mark.spark
def test_a_session_starts_from_the_archive_and_says_nothing(settings: Settings) -> None:
    """All the usual lines of a start (default log level, incubator modules, native library, loopback) stay away."""
    settings.home.mkdir()
    conf = spark_runtime.spark_conf(settings, {"spark.driver.extraJavaOptions": "-Xlog:class+load:stdout"})
    script = (
        "import json, sys\nfrom pyspark.sql import SparkSession\nbuilder = SparkSession.builder\n"
        "for item in json.loads(sys.argv[1]).items(): builder = builder.config(*item)\n"
        "spark = builder.getOrCreate()\nspark.range(3).count()\nspark.stop()\n"
    )
    done = _python(script, json.dumps(conf))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    loaded = [line for line in done.stdout.splitlines() if "Lambda" not in line and "Generated" not in line]
    from_jars = [line for line in loaded if "source: file:" in line]
    from_archive = [line for line in loaded if "source: shared objects file (top)" in line]
    assert len(from_archive) > 10 * len(from_jars) > 0


@pytest.mark.spark
def test_jars_are_resolved_whole_past_a_stray_pom(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A POM without its jar in ~/.m2 makes Ivy fail; ours never looks there. An interrupted set-up leaves nothing."""
    monkeypatch.setattr(spark_runtime, "coordinates", lambda: ("org.xerial:sqlite-jdbc:3.50.3.0",))
    home = tmp_path / "user"
    stray = home / ".m2/repository/org/xerial/sqlite-jdbc/3.50.3.0/sqlite-jdbc-3.50.3.0.pom"
    stray.parent.mkdir(parents=True)
    stray.write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>org.xerial</groupId>"
        "<artifactId>sqlite-jdbc</artifactId><version>3.50.3.0</version></project>"
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Duser.home={home}")
    settings = dataclasses.replace(settings, cache=tmp_path / "cache")
    spark_runtime._resolve(settings)
    assert [jar.name for jar in spark_runtime.jars(settings)] == ["org.xerial_sqlite-jdbc-3.50.3.0.jar"]
    assert [path.name for path in (tmp_path / "cache" / "jars").iterdir()] == [spark_runtime._jar_folder(settings).name]


@pytest.mark.spark
def test_jars_that_cannot_be_had_are_told_with_the_remedy(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_runtime, "coordinates", lambda: ("org.example:nothing-of-this-name:1.0",))
    settings = dataclasses.replace(settings, cache=tmp_path / "cache")
    with pytest.raises(SetupError, match=r"nothing-of-this-name.*LAKEHOUSE_SPARK__spark__jars__repositories"):
        spark_runtime._resolve(settings)
    assert not list((tmp_path / "cache" / "jars").iterdir())


def test_set_up_that_is_interrupted_leaves_no_half_directory(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), spark_runtime._beside(tmp_path / "jars" / "hash") as scratch:
        (scratch / "half.jar").touch()
        raise KeyboardInterrupt
    assert not list((tmp_path / "jars").iterdir())


def test_of_two_set_ups_at_once_the_second_takes_what_the_first_made(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jar").write_text(name)
        spark_runtime._publish(tmp_path / name, tmp_path / "target")
    assert (tmp_path / "target" / "a.jar").read_text() == "first"
    shutil.rmtree(tmp_path / "target")
    with pytest.raises(FileNotFoundError):
        spark_runtime._publish(tmp_path / "absent", tmp_path / "target")


def _python(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, **spark_runtime.environment()},
        capture_output=True,
        text=True,
    )
