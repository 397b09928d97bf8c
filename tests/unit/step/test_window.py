"""A window's bounds as dates, the end exclusive, whatever the partitions are."""

from __future__ import annotations

from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import pytest

from lakehouse_assets.step.window import Window

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("start", "end", "dates"),
    [
        (datetime(2026, 1, 31), datetime(2026, 2, 1), (date(2026, 1, 31), date(2026, 2, 1))),
        (datetime(2026, 1, 31, 3), datetime(2026, 1, 31, 4), (date(2026, 1, 31), date(2026, 2, 1))),
        (datetime(2026, 1, 31, 23), datetime(2026, 2, 1), (date(2026, 1, 31), date(2026, 2, 1))),
        (datetime(2026, 1, 31, 6), datetime(2026, 2, 1, 6), (date(2026, 1, 31), date(2026, 2, 2))),
    ],
)
@pytest.mark.parametrize("zone", [UTC, BERLIN], ids=["UTC", "Berlin"])
def test_all_rows_of_a_window_lie_between_its_dates(
    start: datetime, end: datetime, dates: tuple[date, date], zone: ZoneInfo
) -> None:
    window = Window(start=start.replace(tzinfo=zone), end=end.replace(tzinfo=zone))
    assert (window.start_date, window.end_date) == dates
