"""Which partitions `lakehouse run --partitions` takes of an asset."""

from __future__ import annotations

import dagster as dg
import pytest

from lakehouse_assets.cli.pipeline import Selection
from lakehouse_assets.errors import LakehouseError

DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")
ORDERS = Selection((dg.AssetKey(["shop", "orders"]),), DAYS)


@pytest.mark.parametrize(
    ("span", "chosen"),
    [
        ("2026-01-02", DAYS[1:2]),
        ("2026-01-01...2026-01-03", DAYS),
        ("2026-01-02...2026-01-03", DAYS[1:]),
        ("2026-01-03...2026-01-03", DAYS[2:]),
    ],
)
def test_a_span_is_a_key_or_a_range(span: str, chosen: tuple[str, ...]) -> None:
    assert ORDERS.within(span).partitions == chosen


@pytest.mark.parametrize(
    ("span", "problem"),
    [
        ("2026-01-04", "shop.orders has no partition '2026-01-04'; it has 3, 2026-01-01 to 2026-01-03"),
        ("2025-12-31...2026-01-02", "no partition '2025-12-31'"),
        ("2026-01-03...2026-01-01", "begins with 2026-01-03, after its end 2026-01-01"),
        ("", "no partition ''"),
        ("2026-01-01..2026-01-02", "no partition '2026-01-01..2026-01-02'"),
        ("2026-01-01...", "no partition ''"),
    ],
)
def test_a_span_that_the_asset_lacks_is_refused(span: str, problem: str) -> None:
    with pytest.raises(LakehouseError, match=problem):
        ORDERS.within(span)


def test_an_asset_without_partitions_runs_whole() -> None:
    whole = Selection((dg.AssetKey(["shop", "rates"]),), None)
    assert whole.within("2026-01-01") is whole
