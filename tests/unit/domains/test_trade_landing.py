"""What is put beside customs files that somebody has brought: enough for every table, and none of the figures.
That steps read it: integration/test_trade.py."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from lakehouse_assets.domains.trade.landing import complete, fill, not_made_up
from lakehouse_assets.domains.trade.shape import CORRECTION


def test_only_what_is_missing_is_added_and_no_figure(tmp_path: Path) -> None:
    (tmp_path / "customs").mkdir()
    (tmp_path / "customs" / "2017.csv").write_text("brought by somebody\n")
    added = {path.name: path.read_text().splitlines() for path in complete(tmp_path)}
    assert set(added) == {"countries.csv", "none.csv"}
    assert added["none.csv"] == [",".join(CORRECTION)], "no correction"
    assert list(complete(tmp_path)) == []
    assert (tmp_path / "customs" / "2017.csv").read_text() == "brought by somebody\n"


def test_a_folder_is_filled_and_what_is_missing_is_made_again(tmp_path: Path) -> None:
    written = [path.relative_to(tmp_path).as_posix() for path in fill(tmp_path, 30)]
    years = [f"customs/{year}.csv" for year in range(2017, 2021)]
    assert written == ["countries.csv", "revisions/1.csv", "revisions/2.csv", *years]
    assert not_made_up(tmp_path) == []
    (tmp_path / "customs" / ".~lock.2017.csv#").touch()
    before = (tmp_path / years[1]).read_text()
    (tmp_path / years[1]).unlink()
    assert not_made_up(tmp_path) == []
    assert [path.name for path in fill(tmp_path, 30)] == ["2018.csv"]
    assert (tmp_path / years[1]).read_text() == before


@pytest.mark.parametrize("name", ["customs/2017.csv", "customs/2017.csv.gz", "revisions/3.csv", "countries.csv"])
def test_made_up_files_are_never_mixed_with_others(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("brought by somebody\n")
    assert not_made_up(tmp_path) == [name], "it is not taken for an empty folder"
    (tmp_path / name).unlink()
    assert list(fill(tmp_path, 30))
    (tmp_path / name).write_text("brought by somebody\n")
    with pytest.raises(dg.Failure, match=f"others, such as {name}; figures of both would be mixed"):
        not_made_up(tmp_path)
