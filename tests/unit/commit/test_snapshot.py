"""The metadata a publish builds on is PyIceberg's own, though it is computed once for each change.
Publishing itself is tested in integration/test_publish.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Transaction

from lakehouse_assets.commit import tokens
from lakehouse_assets.commit.snapshot import LeanTransaction
from tests.support.forks import Daily, daily_rows

DAYS = ("2013-01-01", "2013-01-02")


@pytest.fixture
def daily(tmp_path: Path) -> Daily:
    (tmp_path / "warehouse").mkdir()
    warehouse = (tmp_path / "warehouse").as_uri()
    return Daily.create(load_catalog("lake", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=warehouse))


def test_a_lean_transaction_has_pyicebergs_metadata_after_every_step(
    daily: Daily, monkeypatch: pytest.MonkeyPatch
) -> None:
    daily.publish("first", DAYS, daily.stage("first", 0, DAYS, daily_rows(*DAYS)))
    staged = daily.stage("second", 0, DAYS[:1], daily_rows(DAYS[0], each=2))
    monkeypatch.setattr(tokens, "prunable", lambda *_: ["lakehouse.run.first"])  # so that properties are removed too
    steps: list[int] = []
    apply = Transaction._apply

    def compared(self: Transaction, *arguments: Any, **options: Any) -> Transaction:
        assert isinstance(self, LeanTransaction)
        before = self.table_metadata
        transaction = apply(self, *arguments, **options)
        own = Transaction.table_metadata.fget(self)  # type: ignore[attr-defined]
        assert self.table_metadata == own != before
        assert self.table_metadata is self.table_metadata, "computed once"
        steps.append(len(self._updates))
        return transaction

    monkeypatch.setattr(Transaction, "_apply", compared)
    daily.publish("second", DAYS[:1], staged)
    assert len(steps) == 3, "a snapshot, a token that comes, one that goes"
    assert steps == sorted(set(steps)), "a snapshot, a token that comes, one that goes"
    assert daily.counts() == {DAYS[0]: 2, DAYS[1]: 1}
    assert [name for name in daily.table.properties if name.startswith(tokens.PREFIX)] == ["lakehouse.run.second"]
