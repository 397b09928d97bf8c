"""A launcher of another package is found by its entry point, configured by the environment, and runs a table's workers.
The package is in tests/support/second_party; what the built-in launchers promise is in test_launchers.py."""

from __future__ import annotations

import os
from collections.abc import Iterator

import dagster as dg
import pytest

from lakehouse_assets.environment import computes
from lakehouse_assets.environment.env_reader import SettingsError
from lakehouse_assets.environment.settings import Settings, read_settings, unknown_names
from tests.conftest import ROOT, Lake
from tests.support.tables import numbers

PACKAGE = ROOT / "tests/support/second_party"


@pytest.fixture(autouse=True)
def installed(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package is on this process's path, and on those of its workers."""
    monkeypatch.syspath_prepend(PACKAGE)
    monkeypatch.setenv("PYTHONPATH", f"{PACKAGE}{os.pathsep}{ROOT}")
    computes.added.cache_clear()
    yield
    computes.added.cache_clear()


@pytest.mark.long("A table by a real worker; the other tests of the launcher hold what a launcher of others must do.")
@pytest.mark.spark
def test_its_workers_fill_a_table(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_COMPUTE", "pods")
    monkeypatch.setenv("LAKEHOUSE_PODS_NAMESPACE", "data-team")
    lake = Lake(read_settings(), instance)
    table = numbers()
    assert lake.run(table, "2024-01-01").success
    (pod,) = (lake.settings.home / "pods/data-team").glob("*.pod")
    assert pod.read_text().startswith(f"{table.identifier} chunk 0")


def test_its_settings_are_refused_as_ours_are() -> None:
    with pytest.raises(SettingsError, match=r"LAKEHOUSE_PODS_NAMESPACE='A!' is not of the form data-team"):
        read_settings({"LAKEHOUSE_COMPUTE": "pods", "LAKEHOUSE_PODS_NAMESPACE": "A!"})
    with pytest.raises(SettingsError, match=r"LAKEHOUSE_PODS_NAMESPACE is not set .* 'a.b', needs"):
        read_settings({}, also={"pods": ["a.b"]})


def test_its_variables_are_known() -> None:
    (problem,) = unknown_names({"LAKEHOUSE_PODS_NAMESPACE": "a", "LAKEHOUSE_PODS_NAMESPACES": "a"})
    assert "did you mean LAKEHOUSE_PODS_NAMESPACE?" in problem


def test_it_is_named_where_another_is_unknown() -> None:
    with pytest.raises(SettingsError, match=r"LAKEHOUSE_COMPUTE='mainframe'.*emr_eks, pods$"):
        read_settings({"LAKEHOUSE_COMPUTE": "mainframe"})
