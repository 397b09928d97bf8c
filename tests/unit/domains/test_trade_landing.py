"""What is put beside customs files that somebody has brought: enough for every table, and none of the figures.
That steps read it: integration/test_trade.py."""

from __future__ import annotations

from pathlib import Path

from lakehouse_assets.domains.trade.landing import complete
from lakehouse_assets.domains.trade.steps import KEY


def test_only_what_is_missing_is_added_and_no_figure(tmp_path: Path) -> None:
    (tmp_path / "customs").mkdir()
    (tmp_path / "customs" / "2017.csv").write_text("brought by somebody\n")
    added = {path.name: path.read_text().splitlines() for path in complete(tmp_path)}
    assert set(added) == {"countries.csv", "none.csv"}
    assert added["none.csv"] == [",".join((*KEY, "Q1", "Q2", "Value", "revision", "op"))], "no correction"
    assert list(complete(tmp_path)) == []
    assert (tmp_path / "customs" / "2017.csv").read_text() == "brought by somebody\n"
