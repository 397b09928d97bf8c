"""A class-data archive is used only with the Java and the jars it was made with."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lakehouse_assets.environment import spark_setup
from lakehouse_assets.environment.machine import java_home
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.environment.spark_setup import (
    archive_key,
    class_data_archive,
    environment,
    jar_folder,
    java_options,
)


@pytest.fixture(autouse=True)
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Java tells of the tests' own options."""
    monkeypatch.delenv("JDK_JAVA_OPTIONS", raising=False)


@pytest.mark.spark
def test_an_archive_belongs_to_the_jars_it_was_made_with(fake_jars: Settings) -> None:
    archive_key.cache_clear()
    key = archive_key(fake_jars.cache, java_home())
    archive = fake_jars.cache / spark_setup.ARCHIVES / f"{key}-5.jsa"
    archive.parent.mkdir()
    archive.write_text("12345")
    assert class_data_archive(fake_jars) == archive
    archive.write_text("1234")  # a truncated one crashes the JVM
    assert class_data_archive(fake_jars) is None
    archive.write_text("12345")
    jar = jar_folder(fake_jars.cache) / "a.jar"
    os.utime(jar, ns=(0, jar.stat().st_mtime_ns // 10**9 * 10**9))  # as an image's registry returns files
    archive_key.cache_clear()
    assert class_data_archive(fake_jars) == archive
    jar.write_text("another")
    archive_key.cache_clear()
    assert class_data_archive(fake_jars) is None


@pytest.mark.spark
@pytest.mark.parametrize("damage", ["missing", "empty", "foreign"])
def test_a_java_that_cannot_use_its_archive_goes_on_in_silence(tmp_path: Path, damage: str) -> None:
    archive = tmp_path / "with a space.jsa"
    if damage != "missing":
        archive.write_bytes(os.urandom(100_000) if damage == "foreign" else b"")
    options = shlex.split(" ".join(java_options(archive, tmp_path)))
    done = subprocess.run([java_home() / "bin" / "java", *options, "--version"], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith("openjdk")


@pytest.mark.spark
@pytest.mark.parametrize(("of_table", "invocations"), [((), 50_000), (("-XX:Tier4InvocationThreshold=5000",), 5_000)])
def test_methods_are_compiled_later_unless_a_table_says_otherwise(
    tmp_path: Path, of_table: tuple[str, ...], invocations: int
) -> None:
    options = (*shlex.split(" ".join(java_options(None, tmp_path))), *of_table)  # Spark puts a table's options last
    command = [java_home() / "bin" / "java", *options, "-XX:+PrintFlagsFinal", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    flags = dict(re.findall(r"(\w+) +=? *(\d+) +\{", done.stdout))
    assert flags["Tier4InvocationThreshold"] == str(invocations)
    assert flags["Tier4BackEdgeThreshold"] == "400000"


@pytest.mark.spark
def test_a_session_starts_from_the_archive_and_says_nothing(settings: Settings) -> None:
    """All the usual lines of a start (default log level, incubator modules, native library, loopback) stay away."""
    settings.home.mkdir()
    conf = spark_setup.spark_conf(settings, {"spark.driver.extraJavaOptions": "-Xlog:class+load:stdout"})
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


def _python(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, **environment()},
        capture_output=True,
        text=True,
    )
