"""Which of the numbers that Spark gives of a merge are believed, by the summary of its snapshot.
What Spark itself gives is in test_merge_plans.py."""

from __future__ import annotations

import pytest

from lakehouse_assets.worker.merge import METRIC, counted_by_spark

COUNTED = {"inserted": 1, "updated": 2, "deleted": 3}


def summary(times: int = 1, copied: int = 0, **files: int) -> dict[str, str]:
    """Of a merge that COUNTED says, whose tasks have each run so many times."""
    rows = {f"{METRIC}{kind}": times * n for kind, n in {**COUNTED, "copied": copied}.items()}
    return {name.replace("_", "-"): str(n) for name, n in {**rows, **files}.items()}


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(summary(copied=10, added_records=13, deleted_records=15), id="files copied"),
        pytest.param(summary(added_records=3, added_position_deletes=5), id="delete files"),
        pytest.param(
            summary(added_records=3, added_position_deletes=9, removed_position_deletes=4), id="delete files rewritten"
        ),
    ],
)
def test_numbers_that_add_up_to_what_was_written_are_believed(found: dict[str, str]) -> None:
    assert counted_by_spark(found) == COUNTED


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(summary(2, copied=10, added_records=13, deleted_records=15), id="files copied"),
        pytest.param(summary(2, added_records=3, added_position_deletes=5), id="delete files"),
        pytest.param(
            {**summary(added_records=3, added_position_deletes=5), f"{METRIC}deleted": "4"}, id="one deleted row twice"
        ),
        pytest.param({"added-records": "3", "added-position-deletes": "5"}, id="none, before Spark 4.1"),
        pytest.param(dict.fromkeys(summary(), "-1") | {"added-records": "3"}, id="Spark does not know"),
    ],
)
def test_numbers_of_tasks_that_have_run_twice_are_not(found: dict[str, str]) -> None:
    assert counted_by_spark(found) is None
