"""The table behind a declaration: made once, however many runs come first at once, and refused where it differs."""

from __future__ import annotations

from threading import Barrier, Thread

import pytest

from lakehouse_assets.lakehouse.errors import PublishRefused
from lakehouse_assets.lakehouse.table import column
from lakehouse_assets.lakehouse.target import open_target
from resources.catalog import load_lake, outlasting
from resources.settings import Settings
from tests.tables import numbers, whole


def test_runs_that_come_first_at_once_open_one_table(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    load_lake(settings)
    catalogs, at_once, opened = [load_lake(settings) for _ in range(2)], Barrier(2), []
    table = numbers()  # not in the threads: it parses its step's file, which CPython 3.11 can't in two at once

    def open_at_once(catalog) -> None:
        exists, together = catalog.namespace_exists, iter([True])

        def look(namespace):
            found = exists(namespace)
            if next(together, False):
                at_once.wait(10)  # both have seen that there is no namespace
            return found

        monkeypatch.setattr(catalog, "namespace_exists", look)
        opened.append(outlasting(lambda: open_target(catalog, table)).metadata.table_uuid)

    threads = [Thread(target=open_at_once, args=[catalog]) for catalog in catalogs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 2 and len(set(opened)) == 1


def test_a_column_that_is_required_in_the_catalog_is_not_declared_optional(settings: Settings) -> None:
    catalog = load_lake(settings)
    open_target(catalog, whole())
    with pytest.raises(PublishRefused, match=r"demo\.whole.*columns n: declared optional, found required"):
        open_target(catalog, whole(columns=[column("n", "long"), column("text", "string")]))
