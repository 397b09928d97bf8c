"""Servers and catalogs shared by the integration tests: started once a session, a table of its own for each test.
What a test does with them is the test's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog, load_catalog

from tests.forks import Daily
from tests.servers import SeaweedFS, seaweedfs


@pytest.fixture(scope="session")
def weed() -> Iterator[SeaweedFS]:
    """A SeaweedFS for the session: S3 and an Iceberg REST catalog."""
    with seaweedfs() as server:
        yield server


@pytest.fixture(params=["sqlite", pytest.param("rest", marks=pytest.mark.server)])
def catalog_properties(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """PyIceberg's properties of a catalog; a loaded one can't be shared by threads or processes."""
    if request.param == "rest":
        return request.getfixturevalue("weed").properties()
    (tmp_path / "warehouse").mkdir()
    return {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": (tmp_path / "warehouse").as_uri(),
    }


@pytest.fixture
def catalog(catalog_properties: dict[str, str]) -> Catalog:
    return load_catalog("lake", **catalog_properties)


@pytest.fixture
def daily(catalog: Catalog) -> Daily:
    """A table by day without rows."""
    return Daily.create(catalog)
