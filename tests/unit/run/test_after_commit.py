"""What happens once a run's rows are published: nothing of it may fail the run, which would be run again for ever.
The real run with workers that need no Spark. What a preview makes of odd files: test_previews.py."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import dagster as dg
import pytest

from lakehouse_assets.declare.modes import Append
from lakehouse_assets.inputs import hook as inputs
from lakehouse_assets.run import report
from tests.conftest import failure_text
from tests.support.faults import FaultyLake, TinyOrReal, rows_by_day, tiny

DAYS = ("2024-01-01", "2024-01-02")


def broken(*_: Any, **__: Any) -> Any:
    raise RuntimeError("the fault of this test")


def told(result: dg.ExecuteInProcessResult) -> dict[str | None, dict[str, Any]]:
    events = result.get_asset_materialization_events()
    return {e.partition: {k: v.value for k, v in e.materialization.metadata.items()} for e in events}


def logged(lake: FaultyLake, result: dg.ExecuteInProcessResult) -> list[str]:
    return [e.user_message for e in lake.instance.all_logs(result.run_id) if "the fault of this test" in e.user_message]


@pytest.mark.parametrize(("of", "broken_part"), [(report, "shown_by_key"), (inputs, "files_by_key")])
def test_what_cant_be_shown_is_told_and_the_partitions_are_green(
    lake: FaultyLake, monkeypatch: pytest.MonkeyPatch, of: ModuleType, broken_part: str
) -> None:
    monkeypatch.setattr(of, broken_part, broken)
    result = lake.run(tiny(), *DAYS)
    assert result.success, failure_text(result)
    assert rows_by_day(lake, tiny()) == dict.fromkeys(DAYS, 3)
    shown = told(result)
    assert shown.keys() == set(DAYS)
    for of_day in shown.values():
        assert "the fault of this test" in of_day["not_shown"]
        assert of_day["snapshot_id"] == str(lake.table(tiny()).current_snapshot().snapshot_id)
    assert logged(lake, result)


@pytest.mark.parametrize("together", [False, True], ids=["a worker for each", "one for both"])
def test_partitions_that_own_no_rows_show_their_files_and_first_rows(lake: FaultyLake, together: bool) -> None:
    (lake.settings.home / "opened").mkdir()
    for day in DAYS:
        (lake.settings.home / "opened" / f"{day}.csv").write_text("n")
    table = tiny(write_mode=Append(), unique=[], partitions_per_worker=None if together else 1)
    result = lake.run(table, *DAYS)
    assert result.success, failure_text(result)
    shown = told(result)
    assert shown.keys() == set(DAYS)
    for day, of_day in shown.items():
        (file,) = (record.data for record in of_day["drop_zone_files"].records)
        assert (Path(str(file["file"])).name, file["bytes"]) == (f"{day}.csv", "1")
        assert ("Of 2024-01-01..2024-01-02 (2) together" in of_day["preview"]) == together
        assert "| 0 | n0 |" in of_day["preview"]
        assert of_day.get("dagster/partition_row_count") == (None if together else 3)


def test_a_worker_that_cant_be_cancelled_when_all_is_done_is_told(
    lake: FaultyLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one whose start was never confirmed: it may run on, and cost, but the run's work is done."""
    monkeypatch.setattr(TinyOrReal, "cancel", broken)
    result = lake.run(tiny(), *DAYS)
    assert result.success, failure_text(result)
    assert told(result).keys() == set(DAYS)
    assert logged(lake, result)
