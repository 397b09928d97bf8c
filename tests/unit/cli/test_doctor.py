"""What `lakehouse doctor` makes of answers, and that it finds nothing missing where nothing is.
What it tries on AWS is tests/integration/test_stacks.py's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from lakehouse_assets.cli.__main__ import main
from lakehouse_assets.cli.doctor import Probe, diagnose, outcome
from lakehouse_assets.environment.settings import Settings
from tests.support.servers import free_ports


def refused(code: str, message: str = "") -> Any:
    def attempt() -> None:
        raise ClientError({"Error": {"Code": code, "Message": message}}, "RunTask")

    return attempt


@pytest.mark.parametrize(
    ("attempt", "expected", "found"),
    [
        (lambda: None, (), "ok"),
        (refused("ClientException", "TaskDefinition not found."), ("ClientException",), "ok"),
        (refused("AccessDeniedException"), ("ClientException",), "denied, needs x"),
        (refused("ClusterNotFoundException", "Cluster not found."), (), "ClusterNotFoundException: Cluster not found."),
    ],
)
def test_an_answer_that_only_an_allowed_call_gets_is_as_good_as_a_result(
    attempt: Any, expected: tuple[str, ...], found: str
) -> None:
    assert outcome(Probe("run tasks", "needs x", attempt, expected)) == found


def test_what_is_not_reached_says_so_with_what_to_look_at() -> None:
    def attempt() -> None:
        raise EndpointConnectionError(endpoint_url="https://sqs.example.com")

    told = outcome(Probe("receive", "see the variables X_*", attempt))
    assert told.startswith("not reached, see the variables X_*")
    assert "sqs.example.com" in told


@pytest.mark.parametrize("tables", [["nyc.flights"], []])
def test_a_laptop_lacks_nothing(tables: list[str], settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    assert diagnose(settings, tables) == 0
    tried = capsys.readouterr().out
    for what in ("Java 17", "Spark's jars", "free disk", "staging", tables[0] if tables else "its namespaces"):
        assert what in tried
    assert list((settings.home / "staging").rglob("*doctor-*")) == []


def test_a_laptop_without_java_jars_or_a_catalog_is_told_what_to_do(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
    monkeypatch.setenv("LAKEHOUSE_CACHE", str(tmp_path / "no-cache"))
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "rest")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"http://127.0.0.1:{free_ports(1)[0]}")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", str(tmp_path / "warehouse"))
    assert main(["doctor"]) == 1
    told = capsys.readouterr()
    assert "openjdk-17" in told.out
    assert "setup`" in told.out
    assert "3 of" in told.err


def test_a_database_that_is_not_there_is_named(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DAGSTER_POSTGRES_HOST", "127.0.0.1")
    monkeypatch.setenv("DAGSTER_POSTGRES_PORT", str(free_ports(1)[0]))
    assert main(["doctor", "nyc.flights"]) == 1
    told = capsys.readouterr()
    assert "reach Dagster's database on 127.0.0.1" in told.out
    assert "1 of" in told.err


def test_settings_that_can_t_work_are_named_before_anything_is_tried(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAKEHOUSE_COMPUTE", "ecs")
    assert main(["doctor", "nyc.flights"]) == 1
    assert "LAKEHOUSE_ECS_CLUSTER" in capsys.readouterr().err
