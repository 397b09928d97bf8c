"""How a table's branch or tag is named."""

from __future__ import annotations

import pytest

from lakehouse_assets.wire.work import MAIN, table_and_ref


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("finance.rates", ("finance.rates", MAIN)),
        ("finance.rates.tag_2026", ("finance.rates", "2026")),
        ("finance.rates.tag_v1.0", ("finance.rates", "v1.0")),
        ("finance.rates.branch_audit.2", ("finance.rates", "audit.2")),
        ("finance.eu.rates.tag_branch_x", ("finance.eu.rates", "branch_x")),
        ("finance.tag_rates", ("finance.tag_rates", MAIN)),
        ("finance.branch_offices.rates", ("finance.branch_offices.rates", MAIN)),
    ],
)
def test_a_name_has_a_table_and_a_branch_or_tag(name: str, found: tuple[str, str]) -> None:
    assert table_and_ref(name) == found
