"""What a release must not be declared as, and which releases stay. How one is published is in integration/."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lakehouse_assets.errors import DeclarationError
from lakehouse_assets.extensions.releases.pointer import MOST, KeptRelease
from lakehouse_assets.extensions.releases.publish_release import still_kept
from lakehouse_assets.extensions.releases.release_asset import Release
from tests.support.releases import RAW, declared

FIRST = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tables": []}, "it has no tables"),
        ({"tables": [RAW, RAW]}, "demo.raw is named twice"),
        ({"tables": [declared("releases")]}, "demo.releases names the released snapshots"),
        ({"keep": 1}, "keep is 1, expected 2 to 1000"),
        ({"keep_for": timedelta(days=-1)}, "must not be negative"),
    ],
)
def test_what_can_not_work_is_refused_when_it_is_declared(options: dict[str, Any], says: str) -> None:
    with pytest.raises(DeclarationError, match=says):
        Release(**{"name": "demo", "tables": [RAW]} | options)


def released(*days: int) -> list[KeptRelease]:
    return [KeptRelease(n, FIRST + timedelta(days=day), f"run {n}", ()) for n, day in enumerate(days, start=1)]


def numbers(releases: tuple[KeptRelease, ...]) -> list[int]:
    return [one.number for one in releases]


def test_the_last_and_the_young_ones_are_kept_and_never_more_than_readers_can_bear() -> None:
    assert numbers(still_kept(released(0, 1, 2, 3), 2, timedelta())) == [3, 4]
    assert numbers(still_kept(released(0, 1, 2, 3), 2, timedelta(days=2))) == [2, 3, 4]
    many = still_kept(released(*[0] * (MOST + 5)), 2, timedelta(days=1))
    assert (len(many), many[-1].number) == (MOST, MOST + 5)
