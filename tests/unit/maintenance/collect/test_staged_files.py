"""Which files are known by their names as a run's, and that every such file has a run whose state is known."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from lakehouse_assets.commit.fork import write_fork_base
from lakehouse_assets.commit.head_fork import write_head_fork
from lakehouse_assets.maintenance.collect.listing import Listed
from lakehouse_assets.maintenance.collect.needed import RunFiles, token_of_base
from lakehouse_assets.storage.place import place_of
from tests.support.forks import Daily, daily_rows
from tests.support.manifests import sqlite_catalog
from tests.support.outsiders import live
from tests.support.rewrites import base_of

BASE = "s3://lake/t/metadata/00000-fork-dead-0a1b2c3d.metadata.json"


def test_the_bases_that_both_writers_write_are_their_runs(tmp_path: Path) -> None:
    daily, run = Daily.create(sqlite_catalog(tmp_path)), str(uuid4())
    daily.append(daily_rows("2013-01-01"))
    written = [write_fork_base(daily.table, run), write_head_fork(daily.table, base_of(daily), run, live(daily.table))]
    assert [token_of_base(place_of(base.location)) for base in written] == [run, run]
    folder = Path(written[0].location.removeprefix("file://")).parent
    assert sum(token_of_base(place_of(str(path))) == run for path in folder.iterdir()) == 2


@pytest.mark.parametrize("name", [BASE, f"{BASE}.gz"])
def test_a_base_and_its_checksum_are_noted(name: str) -> None:
    folder, _, base = name.rpartition("/")
    for location in (name, f"{folder}/.{base}.crc"):
        leavings = RunFiles()
        leavings.note(Listed(place_of(location), 1, 7, "e"))
        assert leavings.newest_ms == {"dead": 7}


@pytest.mark.parametrize("name", [f"{BASE}.bak", f"{BASE}.gz.1", BASE.replace("-0a", "-xx"), f"{BASE}/part"])
def test_other_names_are_no_bases(name: str) -> None:
    leavings = RunFiles()
    leavings.note(Listed(place_of(name), 1, 7, "e"))
    assert token_of_base(place_of(name)) is None
    assert leavings.newest_ms == {}
