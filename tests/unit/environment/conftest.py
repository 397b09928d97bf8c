"""Fixtures of the tests of Spark's settings, jars and archive."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.environment.spark_setup import jar_folder


@pytest.fixture
def fake_jars(settings: Settings, tmp_path: Path) -> Settings:
    """Settings with a cache that looks resolved."""
    settings = dataclasses.replace(settings, cache=tmp_path / "cache")
    folder = jar_folder(settings.cache)
    folder.mkdir(parents=True)
    (folder / "b.jar").touch()
    (folder / "a.jar").touch()
    return settings
