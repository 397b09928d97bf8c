"""Partition specs in messages."""

from __future__ import annotations

from pyiceberg.schema import Schema

from lakehouse_assets.declare.columns import spec_text
from tests.support.clocks import SCHEMA, spec


def test_a_spec_is_written_as_the_terms_that_declare_it() -> None:
    text = spec_text(spec("day", "month(at)", "bucket[16](shop)", "truncate[3](region)"), SCHEMA)
    assert text == "day, month(at), bucket(16, shop), truncate(3, region)"
    assert spec_text(spec(), SCHEMA) == "none"
    assert spec_text(spec("day(at)"), Schema()) == "day(column 2)"
