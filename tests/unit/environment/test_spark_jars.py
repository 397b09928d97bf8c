"""The jars are those of the installed Spark, and are used only when all of them are there."""

from __future__ import annotations

import dataclasses
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest

from lakehouse_assets.environment import spark_setup
from lakehouse_assets.environment.machine import SetupError
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.environment.spark_setup import (
    COORDINATES,
    build,
    fetch_jars,
    jar_folder,
    jars,
    put_in_place,
    scratch_beside,
)
from tests.support.faults import small_disk


def test_missing_jars_say_what_to_run(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="lakehouse setup`"):
        jars(dataclasses.replace(settings, cache=tmp_path))


def test_jars_come_in_one_order(fake_jars: Settings) -> None:
    assert [jar.name for jar in jars(fake_jars)] == ["a.jar", "b.jar"]


def test_jars_are_those_of_the_installed_spark() -> None:
    minor = ".".join(version("pyspark").split(".")[:2])
    assert COORDINATES[0].startswith(f"org.apache.iceberg:iceberg-spark-runtime-{minor}_")


def test_options_of_the_users_own_reach_the_resolver(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = tmp_path / "spark" / "bin" / "spark-submit"
    submit.parent.mkdir(parents=True)
    submit.write_text('#!/bin/sh\necho "options: $SPARK_SUBMIT_OPTS"\nexit 1\n')
    submit.chmod(0o755)
    monkeypatch.setattr(spark_setup, "spark_home", lambda: tmp_path / "spark")
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dhttps.proxyHost=proxy")
    with pytest.raises(SetupError, match=r"options: -Dhttps.proxyHost=proxy .*user.home="):
        fetch_jars(dataclasses.replace(settings, cache=tmp_path / "cache"))


def test_a_disk_without_room_for_the_jars_is_named(settings: Settings, tmp_path: Path) -> None:
    with small_disk(tmp_path / "cache") as cache:
        settings = dataclasses.replace(settings, cache=cache)
        with pytest.raises(SetupError) as refused:
            fetch_jars(settings)
        assert f"8 MiB are free on the disk of {cache}, but 280 are needed; free up space there" in str(refused.value)
        assert "network" not in str(refused.value)


def test_without_room_for_the_archive_nothing_is_trained(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_disk(tmp_path / "cache") as cache:
        settings = dataclasses.replace(settings, cache=cache)
        jar_folder(cache).mkdir(parents=True)
        build(settings, training="no_module")
    assert f"8 MiB are free on the disk of {cache}, but 220 are needed" in capsys.readouterr().out


@pytest.mark.spark
def test_jars_are_resolved_whole_past_a_stray_pom(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A POM without its jar in ~/.m2 makes Ivy fail; ours never looks there. An interrupted set-up leaves nothing."""
    monkeypatch.setattr(spark_setup, "COORDINATES", ("org.xerial:sqlite-jdbc:3.50.3.0",))
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
    fetch_jars(settings)
    assert [jar.name for jar in jars(settings)] == ["org.xerial_sqlite-jdbc-3.50.3.0.jar"]
    assert [path.name for path in (tmp_path / "cache" / "jars").iterdir()] == [jar_folder(settings.cache).name]


@pytest.mark.spark
def test_jars_that_cannot_be_had_are_told_with_the_remedy(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_setup, "COORDINATES", ("org.example:nothing-of-this-name:1.0",))
    settings = dataclasses.replace(settings, cache=tmp_path / "cache")
    with pytest.raises(SetupError, match=r"nothing-of-this-name.*LAKEHOUSE_SPARK__spark__jars__repositories"):
        fetch_jars(settings)
    assert not list((tmp_path / "cache" / "jars").iterdir())


def test_set_up_that_is_interrupted_leaves_no_half_directory(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), scratch_beside(tmp_path / "jars" / "hash") as scratch:
        (scratch / "half.jar").touch()
        raise KeyboardInterrupt
    assert not list((tmp_path / "jars").iterdir())


def test_of_two_set_ups_at_once_the_second_takes_what_the_first_made(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jar").write_text(name)
        put_in_place(tmp_path / name, tmp_path / "target")
    assert (tmp_path / "target" / "a.jar").read_text() == "first"
    shutil.rmtree(tmp_path / "target")
    with pytest.raises(FileNotFoundError):
        put_in_place(tmp_path / "absent", tmp_path / "target")
