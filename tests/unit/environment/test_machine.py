"""What this machine, or the ECS task on it, offers: memory, cores, a Java that fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lakehouse_assets.environment import machine
from lakehouse_assets.environment.machine import SetupError, java_home, java_version
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.environment.spark_setup import machine_conf
from tests.support.fakes.task_metadata import task_metadata

GIB = 2**30


def _java(folder: Path, version: str) -> Path:
    """A Java home that states ``version`` as a JDK does."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "java").write_text("#!/bin/sh\n")
    (folder / "bin" / "java").chmod(0o755)
    (folder / "release").write_text(f'IMPLEMENTOR="nobody"\nJAVA_VERSION="{version}"\n')
    return folder


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
    documents_by_path: dict[str, dict[str, object]] = {}
    monkeypatch.setattr(machine, "METADATA_WAITS", (0.0, 0.01))
    with task_metadata(documents_by_path.get) as address:

        def serve(documents: dict[str, dict[str, object]]) -> None:
            documents_by_path.update(documents)
            monkeypatch.setenv("ECS_CONTAINER_METADATA_URI_V4", address)

        yield serve


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
    assert machine_conf(fake_jars, "1g", None, fake_jars.home / "tmp")["spark.master"] == "local[1]"


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
    assert machine_conf(fake_jars, "1g", None, fake_jars.home / "tmp")["spark.master"] == "local[*]"
    assert [record.levelname for record in caplog.records] == warnings


def test_a_task_whose_metadata_comes_late_is_read_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    documents: dict[str, dict[str, object]] = {"/task": {"Limits": {"CPU": 1, "Memory": 1024}}, "": {}}
    asked: list[str] = []

    def late(path: str) -> dict[str, object] | None:
        asked.append(path)
        return documents[path] if asked.count(path) == 3 else None

    monkeypatch.setattr(machine, "METADATA_WAITS", (0.0, 0.01))
    with task_metadata(late) as address:
        monkeypatch.setenv("ECS_CONTAINER_METADATA_URI_V4", address)
        assert machine.memory_bytes() == GIB
    assert asked == ["/task"] * 3 + [""] * 3


@pytest.mark.parametrize(("text", "version"), [("17.0.15", 17), ("21", 21), ("1.8.0_412", 8), ("22-ea", 22)])
def test_java_tells_its_version(tmp_path: Path, text: str, version: int) -> None:
    assert java_version(_java(tmp_path / "java", text)) == version


def test_an_old_java_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAKEHOUSE_JAVA_HOME", raising=False)
    monkeypatch.setenv("JAVA_HOME", str(_java(tmp_path / "eleven", "11.0.2")))
    with pytest.raises(SetupError, match=r"JAVA_HOME=.*eleven is Java 11, but Spark needs 17"):
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
