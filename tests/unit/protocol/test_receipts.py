"""Receipts on a real folder: found whole, passed over when torn or foreign."""

from __future__ import annotations

import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from lakehouse_assets.protocol.receipts import Receipt, Receipts

RECEIPT = Receipt(
    table="nyc.flights",
    token="run",
    chunk=0,
    keys=("2013-01-01", "2013-01-02"),
    work="1",
    fork_base="base",
    metadata_location="fork",
    rows=3,
    stage_seconds=1.5,
    created_at="2013-01-01T00:00:00+00:00",
    worker="here",
    duplicates=("a: 2 rows",),
)


@pytest.fixture
def receipts(tmp_path: Path) -> Receipts:
    return Receipts(PyArrowFileIO(), f"{tmp_path.as_uri()}/nyc.flights")


def leave(receipts: Receipts, receipt: Receipt, chunk: int | None = None) -> None:
    receipt.write(receipts.io, receipts.location("run", receipt.chunk if chunk is None else chunk))


def test_receipts_are_found_in_order_whatever_is_missing(receipts: Receipts) -> None:
    for chunk in (7, 0, 3):
        leave(receipts, replace(RECEIPT, chunk=chunk))
    assert [r.chunk for r in receipts.find("run", range(10))] == [0, 3, 7]
    assert receipts.find("run", range(1)) == [RECEIPT]
    assert receipts.find("another run", range(10)) == []


def test_a_receipt_is_overwritten_by_a_later_worker(receipts: Receipts) -> None:
    leave(receipts, RECEIPT)
    leave(receipts, replace(RECEIPT, rows=4))
    assert [r.rows for r in receipts.find("run", range(1))] == [4]


@pytest.mark.parametrize("kept", [0, 1, 20, -1])
def test_a_torn_receipt_is_no_receipt(receipts: Receipts, caplog: pytest.LogCaptureFixture, kept: int) -> None:
    leave(receipts, RECEIPT)
    path = Path(receipts.location("run", 0).removeprefix("file://"))
    path.write_text(path.read_text()[:kept])
    with caplog.at_level(logging.WARNING):
        assert receipts.find("run", range(1)) == []
    assert "staged again" in caplog.text


@pytest.mark.parametrize("text", ["null", "[]", "{}", '{"table": "x"}', '{"keys": null, "duplicates": []}'])
def test_a_foreign_file_is_no_receipt(receipts: Receipts, text: str) -> None:
    path = Path(receipts.location("run", 0).removeprefix("file://"))
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert receipts.find("run", range(1)) == []


@pytest.mark.parametrize("version", ['"version": 2', '"version": null', '"other": 1'])
def test_a_receipt_of_another_version_is_left_out(
    receipts: Receipts, caplog: pytest.LogCaptureFixture, version: str
) -> None:
    leave(receipts, RECEIPT)
    path = Path(receipts.location("run", 0).removeprefix("file://"))
    path.write_text(path.read_text().replace('"version": 1', version))
    with caplog.at_level(logging.WARNING):
        assert receipts.find("run", range(1)) == []
    assert "this code reads version 1" in caplog.text
    assert "staged again" in caplog.text


def test_a_receipt_of_another_run_or_chunk_is_left_out(receipts: Receipts) -> None:
    leave(receipts, replace(RECEIPT, token="other"), chunk=0)
    leave(receipts, RECEIPT, chunk=1)
    assert receipts.find("run", range(2)) == []


def test_a_receipt_that_cannot_be_read_is_not_taken_for_missing(receipts: Receipts) -> None:
    """Else its chunk would be staged twice."""
    Path(receipts.location("run", 0).removeprefix("file://")).mkdir(parents=True)
    with pytest.raises(OSError):
        receipts.find("run", range(1))


def test_what_workers_import_needs_neither_dagster_nor_spark() -> None:
    code = "import sys, lakehouse_assets.protocol.receipts; print({'dagster', 'pyspark'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "set()\n"
