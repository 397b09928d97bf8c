"""Which receipts prove that a chunk of this very run was staged.
How receipts are read is tests/unit/protocol/test_receipts.py's."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from lakehouse_assets.protocol.assignment import Assignment
from lakehouse_assets.protocol.receipts import Receipt, Receipts
from lakehouse_assets.run.receipt_proofs import ReceiptProofs
from lakehouse_assets.step.window import Window
from tests.support.attempts import attempt_at
from tests.support.tiny_worker import receipt_of


def assignment(ordinal: int) -> Assignment:
    window = Window(keys=(f"2024-01-{ordinal + 1:02}",))
    return Assignment("demo.numbers", "step", "run", ordinal, window, "base", "receipt", "1", "1")


@pytest.fixture
def proofs(tmp_path: Path) -> ReceiptProofs:
    return ReceiptProofs(Receipts(PyArrowFileIO(), str(tmp_path)), "run", lambda: {0: assignment(0).work})


def test_receipts_count_for_the_very_work_that_is_asked_for(proofs: ReceiptProofs, tmp_path: Path) -> None:
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
    (tmp_path / "run").mkdir()

    def found(receipt: Receipt) -> dict[int, Receipt]:
        stored = replace(receipt, token="run", chunk=0)  # another token or chunk would be left out for that alone
        (tmp_path / "run" / "00000.json").write_text(stored.to_json())
        return proofs.find([0])

    assert [found(receipt_of(other)) for other in others] == [{}] * len(others)
    assert found(receipt_of(asked)) == {0: receipt_of(asked)}
    elsewhere = replace(asked, compute="emr", catalog={"uri": "u"}, receipt="elsewhere")
    assert elsewhere.work == asked.work, "where it runs decides no row"


def test_a_reported_receipt_counts_for_its_own_attempt_and_nothing_else_does(proofs: ReceiptProofs) -> None:
    attempt, receipt = attempt_at(assignment(0)), receipt_of(assignment(0))
    assert proofs.parse(receipt.to_json(), attempt) == receipt
    others = (receipt_of(assignment(1)).to_json(), receipt.to_json()[:40], "[]", 5, None, {"receipt": 5})
    assert [proofs.parse(other, attempt) for other in others] == [None] * len(others)


def test_durable_receipts_are_found_where_they_are_of_the_work_asked_for(proofs: ReceiptProofs, tmp_path: Path) -> None:
    assert proofs.find([0]) == {}
    (tmp_path / "run").mkdir()
    for ordinal in (0, 1):
        location = proofs.receipts.location("run", ordinal)
        receipt_of(assignment(ordinal)).write(proofs.receipts.io, location)
    assert list(proofs.find([0, 1])) == [0]
