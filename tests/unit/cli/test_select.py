"""--select: Dagster's syntax, on this repository's own code location."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
from click.testing import CliRunner

from lakehouse_assets.cli.__main__ import lakehouse
from lakehouse_assets.cli.pipeline import Pipeline
from lakehouse_assets.errors import LakehouseError
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return Pipeline()


@pytest.mark.parametrize(
    ("text", "tables"),
    [
        ("nyc/flights", ["nyc.flights"]),
        ("+nyc/route_delays_monthly", ["nyc.flights", "nyc.route_delays_monthly"]),
        ('key:"nyc/airlines" or key:"nyc/airports"', ["nyc.airlines", "nyc.airports"]),
        ("group:nyc and kind:silver", ["nyc.flights_enriched"]),
    ],
)
def test_the_tables_that_a_text_selects(pipeline: Pipeline, text: str, tables: list[str]) -> None:
    assert pipeline.tables(pipeline.selected(text)) == tables


def test_assets_that_are_no_tables_are_run_too(pipeline: Pipeline, instance: dg.DagsterInstance) -> None:
    found = pipeline.selections(pipeline.selected("+nyc/airlines"), instance)
    assert [one.name for one in found] == ["nyc.landing", "nyc.airlines"]


@pytest.mark.parametrize("text", ["nyc/nowhere", "+((", "", "kind:nothing", "nyc.flights"])
def test_what_selects_nothing_is_told(pipeline: Pipeline, text: str) -> None:
    with pytest.raises(LakehouseError, match="--select"):
        pipeline.selected(text)


def test_it_replaces_the_tables_of_run(tmp_path: Path) -> None:
    done = CliRunner().invoke(lakehouse, ["run", "nyc.flights", "--select", "nyc/flights"])
    assert done.exit_code == 2
    assert "choose one of the two" in done.output
