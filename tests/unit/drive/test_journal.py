"""The journal on a real folder: attempts, of which one counts as the last; receipts, found whole and of the very work,
passed over when torn or foreign. What the loop does with them: test_drive.py and tests/integration/test_ecs.py."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from lakehouse_assets.drive.chunks import AttemptRecord, Journal
from lakehouse_assets.errors import ForeignVersion
from lakehouse_assets.step.window import Window
from lakehouse_assets.wire.receipts import Receipt
from lakehouse_assets.wire.work import Assignment
from tests.support.attempts import attempt_at
from tests.support.tiny_worker import receipt_of

ASKED_FOR = AttemptRecord(1, "EcsLauncher", "work", "2024-01-01T00:00:00+00:00")
STARTED = replace(ASKED_FOR, id="task-1")


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(PyArrowFileIO(), str(tmp_path))


def test_the_last_attempt_is_known_with_its_worker_s_id_once_that_is_recorded(journal: Journal) -> None:
    assert journal.last([0, 1]) == {}
    journal.record(0, ASKED_FOR)
    assert journal.last([0, 1]) == {0: ASKED_FOR}
    journal.record(0, STARTED)
    assert journal.last([0, 1]) == {0: STARTED}


def test_the_id_of_an_earlier_attempt_is_not_taken_for_the_last_one_s(journal: Journal) -> None:
    journal.record(0, STARTED)
    journal.record(0, ASKED_FOR)
    journal.record(0, further := replace(ASKED_FOR, number=2))
    assert journal.last([0]) == {0: further}


def test_half_a_record_is_left_out_and_costs_nothing_that_was_recorded_before(journal: Journal) -> None:
    journal.record(0, ASKED_FOR)
    Path(journal.record_location(0, with_id=True)).write_text('{"version": 1, "numb')
    assert journal.last([0]) == {0: ASKED_FOR}


@pytest.mark.parametrize("version", [AttemptRecord.FORMAT + 1, None])
@pytest.mark.parametrize("with_id", [False, True])
def test_a_record_in_another_version_is_refused_as_its_worker_may_run(
    journal: Journal, version: int | None, with_id: bool
) -> None:
    journal.record(0, ASKED_FOR)
    location = journal.record_location(0, with_id=with_id)
    Path(location).write_text(json.dumps({"version": version, "anything": "else"}))
    with pytest.raises(
        ForeignVersion, match=rf"{location} .* in version {version}, .* reads version 1.* may be running.*again"
    ):
        journal.last([0])


# Receipts

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


def leave(journal: Journal, receipt: Receipt) -> Path:
    """Returns the path of the receipt's file."""
    receipt.write(journal.io, location := journal.receipt_location(receipt.chunk))
    return Path(location)


def test_receipts_are_found_in_order_whatever_is_missing(journal: Journal) -> None:
    for chunk in (7, 0, 3):
        leave(journal, replace(RECEIPT, chunk=chunk))
    assert [r.chunk for r in journal.receipts(range(10))] == [0, 3, 7]
    assert journal.receipts(range(1)) == [RECEIPT]


def test_a_receipt_is_overwritten_by_a_later_worker(journal: Journal) -> None:
    leave(journal, RECEIPT)
    leave(journal, replace(RECEIPT, rows=4))
    assert [r.rows for r in journal.receipts(range(1))] == [4]


@pytest.mark.parametrize("kept", [0, 1, 20, -1])
def test_a_torn_receipt_is_no_receipt(journal: Journal, caplog: pytest.LogCaptureFixture, kept: int) -> None:
    path = leave(journal, RECEIPT)
    path.write_text(path.read_text()[:kept])
    with caplog.at_level(logging.WARNING):
        assert journal.receipts(range(1)) == []
    assert "counts as missing" in caplog.text


@pytest.mark.parametrize("text", ["null", "[]", "{}", '{"table": "x"}', '{"keys": null, "duplicates": []}'])
def test_a_foreign_file_is_no_receipt(journal: Journal, text: str) -> None:
    Path(journal.receipt_location(0)).write_text(text)
    assert journal.receipts(range(1)) == []


@pytest.mark.parametrize("version", ['"version": 2', '"version": null', '"other": 1'])
def test_a_receipt_of_another_version_is_left_out(
    journal: Journal, caplog: pytest.LogCaptureFixture, version: str
) -> None:
    path = leave(journal, RECEIPT)
    path.write_text(path.read_text().replace('"version": 1', version))
    with caplog.at_level(logging.WARNING):
        assert journal.receipts(range(1)) == []
    assert "this code reads version 1" in caplog.text
    assert "counts as missing" in caplog.text


def test_a_receipt_that_cannot_be_read_is_not_taken_for_missing(journal: Journal) -> None:
    """Else its chunk would be staged twice."""
    Path(journal.receipt_location(0)).mkdir()
    with pytest.raises(OSError):
        journal.receipts(range(1))


def assignment(ordinal: int) -> Assignment:
    window = Window(keys=(f"2024-01-{ordinal + 1:02}",))
    return Assignment("demo.numbers", "step", "run", ordinal, window, "base", "receipt", "1", "1")


def test_receipts_count_for_the_very_work_that_is_asked_for(journal: Journal) -> None:
    asked = assignment(0)
    window = asked.window
    others = [
        replace(asked, window=replace(window, keys=("2024-01-09",))),
        replace(asked, window=replace(window, landing="elsewhere")),
        replace(asked, window=replace(window, start=datetime(2024, 1, 1, 5, tzinfo=UTC))),
        replace(asked, window=replace(window, dimensions={"region": ("eu",)})),
        replace(asked, table="demo.letters"),
        replace(asked, step="another"),
        replace(asked, token="another"),
        replace(asked, fork_base="another"),
        replace(asked, code_version="2"),
        replace(asked, code="2"),
        replace(asked, unique=("n",)),
        replace(asked, spark_conf={"spark.sql.session.timeZone": "Asia/Tokyo"}),
        replace(asked, chunk=7),
    ]

    def found(receipt: Receipt) -> dict[int, Receipt]:
        Path(journal.receipt_location(0)).write_text(receipt.to_json())
        return journal.find([attempt_at(asked)])

    assert [found(receipt_of(other)) for other in others] == [{}] * len(others)
    assert found(receipt_of(asked)) == {0: receipt_of(asked)}
    elsewhere = replace(asked, compute="emr", catalog={"uri": "u"}, receipt="elsewhere")
    assert elsewhere.work == asked.work, "where it runs decides no row"


def test_a_reported_receipt_counts_for_its_own_attempt_and_nothing_else_does(journal: Journal) -> None:
    attempt, receipt = attempt_at(assignment(0)), receipt_of(assignment(0))
    assert journal.parse(receipt.to_json(), attempt) == receipt
    others = (receipt_of(assignment(1)).to_json(), receipt.to_json()[:40], "[]", 5, None, {"receipt": 5})
    assert [journal.parse(other, attempt) for other in others] == [None] * len(others)
