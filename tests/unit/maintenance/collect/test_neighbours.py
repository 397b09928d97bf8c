"""Tables that lie in each other's way, wherever the catalog has them; by real SQLite catalogs.
What is done about them is in tests/integration/test_collect_scenarios.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ForbiddenError, ServerError, ServiceUnavailableError
from pyiceberg.table import Table

from lakehouse_assets.maintenance.collect.neighbours import Located, Locations, Neighbours
from lakehouse_assets.storage.place import Place, place_of
from tests.support.collected import local_catalog
from tests.support.forks import SCHEMA

ELSEWHERE = place_of("s3://staging/receipts")


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    (tmp_path / "warehouse").mkdir()
    catalog = local_catalog(tmp_path)
    for namespace in ("a", "b", "b.inner"):
        catalog.create_namespace(namespace)
    return catalog


def create(catalog: Catalog, name: str, location: str | Path | None = None, **properties: str) -> None:
    where = {"location": str(location)} if location else {}
    catalog.create_table(name, SCHEMA, properties={k.replace("_", "."): v for k, v in properties.items()}, **where)


def look(catalog: Catalog) -> Locations:
    return Neighbours(catalog).look()


def conflicts(catalog: Catalog, name: str, staging: Place = ELSEWHERE) -> list[str]:
    return look(catalog).conflicts(Located.of(name, catalog.load_table(name)), staging, None)


def test_tables_of_all_namespaces_are_found_and_apart(catalog: Catalog) -> None:
    names = ["a.t", "a.t2", "b.t", "b.inner.t"]
    for name in names:
        create(catalog, name)
    assert sorted(table.identifier for table in look(catalog).tables) == sorted(names)
    assert not any(conflicts(catalog, name) for name in names)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("lake/t", "lake/t"),
        ("lake/t", "lake/t/"),
        ("lake/t", "lake/t/data/inner"),
        ("lake/t/inner", "lake/t"),
        ("lake/t", "lake//t"),
        ("lake/t", "lake/x/../t"),
    ],
)
def test_two_tables_at_one_place_or_within_another(catalog: Catalog, tmp_path: Path, first: str, second: str) -> None:
    create(catalog, "a.one", f"file://{tmp_path}/{first}")
    create(catalog, "b.other", f"{tmp_path}/{second}")
    create(catalog, "a.third", f"{tmp_path}/lake/tt")
    for name in ("a.one", "b.other"):
        (text,) = conflicts(catalog, name)
        assert "a.one" in text
        assert "b.other" in text
        assert "is inside" in text
    assert not conflicts(catalog, "a.third")


def test_the_databases_of_others_that_may_not_be_listed_keep_only_shared_folders(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    create(catalog, "a.t")
    listed = catalog.list_tables

    def forbidden(namespace: object) -> object:
        if namespace == ("b",):
            raise ForbiddenError("not authorized to perform glue:GetTables")
        return listed(namespace)

    monkeypatch.setattr(catalog, "list_tables", forbidden)
    found = look(catalog)
    assert [table.identifier for table in found.tables] == ["a.t"]
    table = Located.of("a.t", catalog.load_table("a.t"))
    (text,) = found.conflicts(table, ELSEWHERE, None)
    assert "b.* can't be read" in text
    assert "LAKEHOUSE_EXCLUSIVE_PREFIX" in text
    assert not found.conflicts(table, ELSEWHERE, place_of(f"{tmp_path}/warehouse"))


@pytest.mark.parametrize("path", ["write_data_path", "write_metadata_path"])
def test_paths_of_data_and_metadata_count(catalog: Catalog, tmp_path: Path, path: str) -> None:
    create(catalog, "a.one", f"{tmp_path}/one")
    create(catalog, "a.other", f"{tmp_path}/other", **{path: f"{tmp_path}/one/of other"})
    assert conflicts(catalog, "a.one") == conflicts(catalog, "a.other") != []


def test_one_table_under_two_names(catalog: Catalog) -> None:
    create(catalog, "a.one")
    catalog.register_table("b.two", catalog.load_table("a.one").metadata_location)
    assert any("registered twice" in text for text in conflicts(catalog, "a.one"))


def metadata_of(catalog: Catalog, name: str) -> Path:
    return Path(catalog.load_table(name).metadata_location.removeprefix("file://"))


@pytest.mark.parametrize("content", [None, "", "{}", "torn {", "\udcff"])
def test_a_table_that_cannot_be_read_keeps_every_table_from_being_judged(catalog: Catalog, content: str | None) -> None:
    create(catalog, "a.one")
    create(catalog, "b.lost")
    metadata = metadata_of(catalog, "b.lost")
    metadata.unlink()
    if content is not None:
        metadata.write_bytes(content.encode(errors="surrogateescape"))
    (text,) = conflicts(catalog, "a.one")
    assert text.startswith("b.lost can't be read, so it is unknown which files it needs: ")
    assert "dropped" not in text
    assert "restore" in text


def test_a_table_that_may_not_be_read_does_so_too(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    create(catalog, "a.one")
    create(catalog, "b.secret")
    answers(monkeypatch, catalog, "secret", ForbiddenError("may not be read"))
    (text,) = conflicts(catalog, "a.one")
    assert "b.secret can't be read" in text
    assert "may not be read" in text


@pytest.mark.parametrize("error", [ServerError("500"), ServiceUnavailableError("503"), TimeoutError("no answer")])
def test_an_error_of_one_table_is_told_of_that_table(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    create(catalog, "a.one")
    create(catalog, "b.other")
    answers(monkeypatch, catalog, "other", error)
    assert look(catalog).unknown == {"b.other": f"{type(error).__name__}: {error}"}


def test_so_is_a_storage_that_cannot_be_read(catalog: Catalog) -> None:
    create(catalog, "a.one")
    create(catalog, "b.other")
    metadata = metadata_of(catalog, "b.other")
    metadata.unlink()
    metadata.mkdir()
    (text,) = conflicts(catalog, "a.one")
    assert "b.other can't be read" in text
    assert "OSError" in text


@pytest.mark.parametrize("listing", ["list_namespaces", "list_tables"])
def test_a_catalog_that_cannot_be_listed_is_no_verdict_about_tables(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, listing: str
) -> None:
    create(catalog, "a.one")

    def refuse(*_: object) -> None:
        raise ServerError("500")

    monkeypatch.setattr(catalog, listing, refuse)
    if listing == "list_namespaces":
        with pytest.raises(ServerError):
            look(catalog)
    else:
        assert {text.partition(" can't be read")[0] for text in conflicts(catalog, "a.one")} == {"a.*", "b.*"}


def answers(monkeypatch: pytest.MonkeyPatch, catalog: Catalog, table: str, error: Exception) -> None:
    """The catalog fails for a table of that name."""
    load = catalog.load_table

    def load_table(identifier: tuple[str, ...]) -> Table:
        if identifier[-1] == table:
            raise error
        return load(identifier)

    monkeypatch.setattr(catalog, "load_table", load_table)


def test_a_table_around_the_staging_prefix(catalog: Catalog, tmp_path: Path) -> None:
    create(catalog, "a.one", f"{tmp_path}/lake")
    (text,) = conflicts(catalog, "a.one", place_of(f"{tmp_path}/lake/staging"))
    assert "LAKEHOUSE_STAGING" in text
    assert not conflicts(catalog, "a.one", place_of(f"{tmp_path}/lake-staging"))


def test_links_hide_no_overlap(catalog: Catalog, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    create(catalog, "a.one", f"{tmp_path}/link/t")
    assert not conflicts(catalog, "a.one")
    (text,) = conflicts(catalog, "a.one", place_of(f"{tmp_path}/link"))
    assert "LAKEHOUSE_STAGING" in text
    create(catalog, "b.other", f"{tmp_path}/disk/t/inner")
    assert "is inside" in conflicts(catalog, "a.one")[0]
