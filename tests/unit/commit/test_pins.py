"""Which tables can be pinned; what a run reads of a pinned one is in tests/integration/test_inputs.py."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import ServiceUnavailableError
from pyiceberg.io import load_file_io
from pyiceberg.table import Table

from lakehouse_assets.errors import PublishRefused
from lakehouse_assets.inputs.pins import gone, pin_inputs


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    lake = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": tmp_path.as_uri()}
    catalog = load_catalog("lake", **lake)
    catalog.create_namespace("demo")
    return catalog


def test_an_input_of_format_version_3_is_refused_in_words(catalog: Catalog, tmp_path: Path) -> None:
    made = catalog.create_table("demo.made", pa.schema([("n", pa.int64())]))
    metadata = json.loads(Path(made.metadata_location.removeprefix("file://")).read_text())
    newer = tmp_path / "00000-newer.metadata.json"
    newer.write_text(json.dumps({**metadata, "format-version": 3, "next-row-id": 0}))
    catalog.register_table("demo.newer", newer.as_uri())
    io = load_file_io({}, tmp_path.as_uri())
    assert [pin.table for pin in pin_inputs(catalog, "demo.t", ["demo.made"], [], io, tmp_path.as_uri())] == [
        "demo.made"
    ]
    for deps, reads in ((["demo.newer"], []), ([], ["demo.newer"])):
        with pytest.raises(PublishRefused, match=r"table demo\.t: it reads demo\.newer, whose format version is 3"):
            pin_inputs(catalog, "demo.t", deps, reads, io, tmp_path.as_uri())


def test_pins_wait_for_a_catalog_that_is_away_for_a_moment(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog.create_table("demo.made", pa.schema([("n", pa.int64())]))
    load, calls = catalog.load_table, list[str]()

    def away_at_first(identifier: str) -> Table:
        calls.append(identifier)
        if len(calls) % 2:
            raise ServiceUnavailableError("503")
        return load(identifier)

    monkeypatch.setattr(catalog, "load_table", away_at_first)
    pins = pin_inputs(catalog, "demo.t", ["demo.made"], [], load_file_io({}, tmp_path.as_uri()), tmp_path.as_uri())
    assert [pin.table for pin in pins] == ["demo.made"]
    assert gone(pins, catalog) == []
    assert len(calls) == 4
