"""run_step(): steps on given inputs, of Python and of SQL; what a failing test then reads."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import pandas as pd
import polars as pl
import pytest

from lakehouse_assets.declare.modes import Merge
from lakehouse_assets.domains.nyc import tables as nyc
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.testing import StepResult, run_step
from tests.support.tables import numbers, whole

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("settings")]
FLIGHT = {"flight_date": "2013-02-03", "carrier": "UA", "flight": 1, "origin": "EWR", "dest": "ORD"}
ROUTE = {"month": date(2013, 2, 1), "origin": "EWR", "dest": "ORD", "carrier": "UA"}


def test_a_query_on_rows_as_dicts() -> None:
    flights = [
        FLIGHT | {"dep_time": 900, "dep_delay": 0, "arr_delay": 10},
        FLIGHT | {"dep_time": 905, "dep_delay": 5, "arr_delay": 20},
        FLIGHT | {"dep_time": None},
        FLIGHT | {"flight_date": "2013-03-01", "dep_time": 900},
    ]
    result = run_step(nyc.route_delays_monthly, "2013-02-01", {nyc.flights: flights})
    result.expect_rows(
        [ROUTE | {"flights": 3, "cancelled": 1, "arrived": 2, "mean_dep_delay": 2.5, "p90_arr_delay": 19.0}]
    )


@pytest.mark.parametrize("form", ["dicts", "polars", "pandas", "arrow", "csv"])
def test_inputs_of_every_form(form: str) -> None:
    hours = {"scheduled_hour_at": [datetime(2013, 2, 3, 14, tzinfo=UTC)]}
    frame = pl.DataFrame({name: [value] for name, value in FLIGHT.items()} | hours)
    flights = {
        "dicts": frame.to_dicts(),
        "polars": frame,
        "pandas": pd.DataFrame(frame.to_dicts()),
        "arrow": frame.to_arrow(),
        "csv": "flight_date,carrier,flight,origin,dest,scheduled_hour_at\n2013-02-03,UA,1,EWR,ORD,2013-02-03T14:00:00Z",
    }[form]
    required = ("year", "month", "day", "sched_dep_time", "sched_arr_time", "distance", "hour", "minute")
    table = replace(
        nyc.flights_enriched,
        columns=[replace(c, required=c.required and c.name not in required) for c in nyc.flights_enriched.columns],
    )
    result = run_step(
        table,
        "2013-02-03",
        {
            nyc.flights: flights,
            nyc.weather: "origin,observed_at,temp\nEWR,2013-02-03T14:00:00Z,30.02\n",
            nyc.airlines: [{"carrier": "UA", "name": "United"}],
            nyc.airports: [],
            nyc.planes: [],
        },
    )
    result.expect_rows([FLIGHT | {"temp": 30.0, "carrier_name": "United", "dest_name": None}], tolerance=0.05)


def test_a_query_that_reads_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one_module.py").write_text("")
    (tmp_path / "x.sql").write_text("SELECT n, text, _change_type FROM changes('lake.demo.source')")
    monkeypatch.syspath_prepend(str(tmp_path))
    table = replace(whole(write_mode=Merge(["n"]), unique=()), step="one_module:x.sql")
    changes = {"demo.source": [{"n": 1, "text": "a", "_change_type": "DELETE"}]}
    run_step(table, changes=changes).expect_rows([{"n": 1, "_change_type": "DELETE"}])
    with pytest.raises(LookupError, match=r"give them to run_step\(changes=…\)"):
        run_step(table)


def test_each_call_has_tables_of_its_own_and_delivered_files(tmp_path: Path, settings: Settings) -> None:
    (tmp_path / "dimensions").mkdir()
    (tmp_path / "dimensions" / "airlines.csv").write_text("carrier,name\nUA,United\n")
    for _ in range(2):
        run_step(nyc.airlines, landing=tmp_path).expect_rows([{"carrier": "UA", "name": "United"}])
    assert not (settings.home / "warehouse").exists()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"checks": {"small": "n < 1"}}, "check 'small': 4 rows fail"),
        ({"unique": ["text"]}, ""),
        ({"unique": ["day"]}, "rows with the same day: {'day': datetime.date(2024, 1, "),
    ],
)
def test_what_the_audit_would_refuse_fails_the_test(options: dict[str, object], problem: str) -> None:
    table = numbers(**options)
    if not problem:
        run_step(table, ["2024-01-01", "2024-01-02"])
        return
    with pytest.raises(AssertionError) as caught:
        run_step(table, ["2024-01-01", "2024-01-02"])
    assert problem in str(caught.value)


def test_wrong_values_of_inputs_are_told() -> None:
    for rows in ([{"flight_date": "yesterday"}], [{"nowhere": 1}]):
        with pytest.raises(ValueError, match=r"nyc\.flights(\.flight_date: | has no column nowhere)"):
            run_step(nyc.route_delays_monthly, "2013-02-01", {nyc.flights: rows})


ROWS = [{"day": date(2024, 1, n), "n": n, "x": n / 3} for n in (1, 2, 2)]


def test_a_difference_is_readable() -> None:
    result = StepResult(whole(), ROWS)
    result.expect_rows(ROWS)
    result.expect_rows([ROWS[1], ROWS[0], ROWS[2]])
    result.expect_rows([{"day": "2024-01-01"}, {"day": "2024-01-02"}, {"day": "2024-01-02"}])
    result.expect_rows([{"n": 1, "x": 0.33}, {"n": 2, "x": 0.67}, {"n": 2, "x": 0.67}], tolerance=0.01)
    for expected, options, told in (
        (
            ROWS[:2],
            {},
            [
                "demo.whole: 3 rows, expected 2",
                "not expected:",
                "  day=datetime.date(2024, 1, 2), n=2, x=0.6666666666666666",
            ],
        ),
        (
            [{"n": 3}, {"n": 1}, {"n": 2}],
            {},
            ["demo.whole: 3 rows, expected 3", "missing:", "  n=3", "not expected:", "  n=2"],
        ),
        (
            [ROWS[1], ROWS[0], ROWS[2]],
            {"in_order": True},
            ["demo.whole: 3 rows, expected 3", "the same rows in another order", "found:"],
        ),
        ([{"y": 1}], {}, ["demo.whole has no column y"]),
    ):
        with pytest.raises(AssertionError) as caught:
            result.expect_rows(expected, **options)
        assert str(caught.value).splitlines()[: len(told)] == told
