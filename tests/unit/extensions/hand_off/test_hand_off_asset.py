"""What a hand-off may declare, and what Dagster gets of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from lakehouse_assets.declare.columns import column
from lakehouse_assets.errors import DeclarationError
from tests.support.hand_offs import HAND_OFF, SOURCE


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"glue": "Partners.source"}, "glue is 'Partners.source', expected database.table"),
        ({"glue": "source"}, "glue is 'source', expected database.table"),
        ({"location": "s3://bucket"}, "location has 's3://bucket', expected s3://bucket/prefix"),
        ({"location": "/exports"}, "location has '/exports'"),
        ({"location": "s3://bucket/exports/"}, "without a slash at the end"),
        ({"replicas": ["s3://eu/x y"]}, "replicas has 's3://eu/x y'"),
        ({"replicas": [HAND_OFF.location]}, "replicas names a location twice"),
        ({"keep": timedelta(minutes=1)}, "keep is 0:01:00, expected at least 1:00:00"),
        ({"replicated_within": timedelta(-1)}, "must not be negative"),
        ({"partitioned_by": ["month"]}, "partitioned_by names 'month', which is not a column"),
        ({"partitioned_by": ["at"]}, "partitioned_by names at, a timestamptz"),
        ({"source": replace(SOURCE, columns=[column("who", "uuid"), column("day", "date")])}, "column who is a uuid"),
        ({"keep": 90}, "keep is 90, it must be of the type"),
    ],
)
def test_what_can_not_work_is_refused_when_it_is_declared(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        replace(HAND_OFF, **options)
    assert problem in str(refused.value)


def test_its_asset_depends_on_the_source() -> None:
    (spec,) = HAND_OFF.asset.specs
    assert spec.key.to_user_string() == "demo/hand_off/partners/source"
    assert [one.asset_key for one in spec.deps] == [SOURCE.key]
