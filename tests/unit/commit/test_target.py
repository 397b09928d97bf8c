"""The table of a declaration: created once, however many first runs start together, and refused if it differs."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
from collections.abc import Sequence
from contextlib import closing
from datetime import date
from pathlib import Path
from threading import Barrier, Thread
from urllib.parse import urlparse

import pyarrow as pa
import pytest
from pyiceberg.table import Table as IcebergTable

from lakehouse_assets.commit.fork import FORK_PROPERTIES, write_fork_base
from lakehouse_assets.commit.target import open_target
from lakehouse_assets.environment.catalog import CatalogUnavailable, load_lake, with_retries
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.errors import PublishRefused
from tests.support.light_stage import register
from tests.support.tables import numbers


def test_first_runs_that_start_together_open_one_table(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
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
        opened.append(with_retries(lambda: open_target(catalog, table)).metadata.table_uuid)

    threads = [Thread(target=open_at_once, args=[catalog]) for catalog in catalogs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 2
    assert len(set(opened)) == 1


def test_nothing_but_the_collector_will_delete_a_new_tables_metadata_files(settings: Settings) -> None:
    properties = open_target(load_lake(settings), numbers()).properties
    assert properties["write.metadata.previous-versions-max"] == "100"
    assert "write.metadata.delete-after-commit.enabled" not in properties, "off is Iceberg's default"


# A new table where an earlier one's files are


def fill(table: IcebergTable, numbers: Sequence[int] = (1, 2)) -> None:
    rows = [{"day": date(2024, 1, 1), "n": n, "text": None} for n in numbers]
    table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))


def folder(table: IcebergTable) -> Path:
    return Path(urlparse(table.location()).path)


def test_no_table_is_created_over_the_rows_of_one_that_a_lost_catalog_had(settings: Settings) -> None:
    table = open_target(load_lake(settings), numbers())
    fill(table)
    fill(table, [3])
    (settings.home / "catalog.db").unlink()
    for age, file in enumerate(sorted((folder(table) / "metadata").iterdir())):
        os.utime(file, (10**9 - age, 10**9 - age))  # as a copy may leave them
    for _ in range(2):
        with pytest.raises(PublishRefused) as refused:
            open_target(load_lake(settings), numbers())
    message = str(refused.value)
    assert all(word in message for word in ("demo.numbers", table.location(), table.metadata_location)), message

    command = re.search(r"register these files with (.*)\. If the table", message)
    assert command, message
    elsewhere = {name: value for name, value in os.environ.items() if name != "LAKEHOUSE_HOME"}
    subprocess.run(command[1], shell=True, env=elsewhere, check=True, timeout=60)
    again = open_target(load_lake(settings), numbers())
    assert again.metadata.table_uuid == table.metadata.table_uuid
    assert again.scan().count() == 3


def test_a_table_dropped_on_purpose_is_created_again_once_its_folder_is_moved_away(settings: Settings) -> None:
    catalog = load_lake(settings)
    table = open_target(catalog, numbers())
    fill(table)
    catalog.drop_table(table.name())
    with pytest.raises(PublishRefused, match="If the table was dropped on purpose, delete"):
        open_target(catalog, numbers())
    folder(table).rename(settings.home / "away")
    assert open_target(catalog, numbers()).scan().count() == 0
    catalog.purge_table(table.name())
    assert open_target(catalog, numbers()).scan().count() == 0


def test_leftovers_of_failed_creations_and_runs_are_in_nobodys_way(settings: Settings, monkeypatch) -> None:
    catalog = load_lake(settings)
    table = open_target(catalog, numbers())
    with monkeypatch.context() as patch:
        patch.delitem(FORK_PROPERTIES, "write.wap.enabled")  # as by code that did not know of it
        base = write_fork_base(table, "token").location
    fill(register(base, table.io.properties))  # staged, and never published
    (folder(table) / "metadata" / "00007-torn.metadata.json").write_text('{"format-version')
    catalog.drop_table(table.name())
    monkeypatch.setattr("lakehouse_assets.environment.catalog.RETRY_SECONDS", 0)
    with closing(sqlite3.connect(settings.home / "catalog.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM iceberg_tables").fetchall()  # others can write, but not commit
        with pytest.raises(CatalogUnavailable):
            with_retries(lambda: open_target(load_lake(settings), numbers()))
    assert len(list(folder(table).glob("metadata/00000-*-*-*-*-*.metadata.json"))) >= 2
    assert open_target(load_lake(settings), numbers()).metadata.table_uuid != table.metadata.table_uuid


def test_a_fork_is_another_only_where_files_would_be_written_otherwise(settings: Settings) -> None:
    table = open_target(load_lake(settings), numbers())
    first = write_fork_base(table, "token")
    for name, same in (("owner", True), ("write.parquet.compression-codec", False)):
        with table.transaction() as transaction:
            transaction.set_properties({name: "snappy"})
        assert (write_fork_base(table, "token") == first) is same, name


def test_a_table_that_another_run_creates_and_fills_meanwhile_is_used(settings: Settings, monkeypatch) -> None:
    catalog, created = load_lake(settings), []
    create = catalog.create_namespace

    def create_late(namespace: str) -> None:
        create(namespace)
        created.append(open_target(load_lake(settings), numbers()))  # it is missing for us, and not for them any more
        fill(created[0])

    monkeypatch.setattr(catalog, "create_namespace", create_late)
    assert open_target(catalog, numbers()).scan().count() == 2
    assert len(created) == 1
