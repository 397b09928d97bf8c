"""Which catalog a table's owner mark names: the same for the same catalog, and without secrets.
What the collector does by it is in tests/integration/test_collect_lineage.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog.glue import GlueCatalog
from pyiceberg.catalog.noop import NoopCatalog

from lakehouse_assets.commit.owner import catalog_text


def text(**properties: str) -> str:
    return catalog_text(NoopCatalog("lake", **{name.replace("_", "."): value for name, value in properties.items()}))


def test_a_folder_is_one_catalog_by_whatever_path_and_options(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    found = {
        text(uri=f"sqlite:///{tmp_path}{way}/catalog.db{end}") for way in ("", "/link") for end in ("", "?timeout=5")
    }
    assert found == {f"lake in {tmp_path.resolve()}/catalog.db"}


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"uri": "postgresql+psycopg2://me:secret@db:5432/lake?sslkey=secret"}, "lake in postgresql://db:5432/lake"),
        ({"uri": "postgresql://db:5432/lake"}, "lake in postgresql://db:5432/lake"),
        ({"uri": "https://u:secret@host/v1/", "warehouse": "w"}, "lake in https://host/v1, warehouse w"),
    ],
)
def test_a_catalog_is_named_by_where_it_is_and_without_secrets(properties: dict[str, str], expected: str) -> None:
    assert text(**properties) == expected


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"glue.id": "1234", "glue.region": "eu-west-1"}, "glue 1234 in https://glue.eu-west-1.amazonaws.com"),
        ({}, "glue in https://glue.us-east-2.amazonaws.com"),
    ],
)
def test_a_glue_catalog_is_named_by_its_region_wherever_that_is_set(
    monkeypatch: pytest.MonkeyPatch, properties: dict[str, str], expected: str
) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-2")
    assert catalog_text(GlueCatalog("lake", **properties)) == expected
