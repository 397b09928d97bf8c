"""What a run's page shows of its workers: where they ran, to be clicked where that leads anywhere.
Rows, files and cost are seen in tests/integration."""

from __future__ import annotations

import dagster as dg
import pytest

from lakehouse_assets.run.report import places

URLS = [f"https://eu-west-1.console.aws.amazon.com/{n}" for n in range(5)]


@pytest.mark.parametrize(
    ("links", "shown"),
    [
        (["local process 1", "local process 2"], dg.MetadataValue.text("local process 1, local process 2")),
        (URLS[:1], dg.MetadataValue.url(URLS[0])),
        (URLS[:2], dg.MetadataValue.md(f"<{URLS[0]}>, <{URLS[1]}>")),
        (URLS, dg.MetadataValue.md(f"<{URLS[0]}>, <{URLS[1]}>, <{URLS[2]}> and 2 more")),
        ([], dg.MetadataValue.text("")),
    ],
    ids=["here", "one", "two", "five", "none"],
)
def test_where_workers_ran_is_a_link_where_there_is_one(links: list[str], shown: dg.MetadataValue) -> None:
    assert places(links) == shown
