"""Movers, purgers, those who put rows back, readers and the database's server are killed, while others write and read.
The steps are the real ones, without a JVM, and are begun again as people do it. Killed runs: test_hot_and_cold.py."""

from __future__ import annotations

import os
import time

import pytest

from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import Settings
from tests.conftest import missing
from tests.support import hot_deaths as parts
from tests.support.hot_campaign import campaign
from tests.support.hot_deaths import POINTS, TABLE
from tests.support.postgres import binaries, postgresql

KILLS = int(os.environ.get("LAKEHOUSE_TEST_KILLS", len(POINTS)))


@pytest.mark.server
@pytest.mark.long("Each death is a process of its own; single ones are in test_source_sensors.py.")
@pytest.mark.timeout(0)
def test_whoever_is_killed_no_read_is_wrong(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    if binaries() is None:
        missing("PostgreSQL is not installed")
    started = time.monotonic()
    with postgresql() as server:
        for name, value in server.variables.items():
            monkeypatch.setenv(name, value)
        with campaign(settings, server) as found:
            for number in range(KILLS):
                found.kill(number)
        found.settle()
        committed = {n: text for client in found.clients for n, text in client.states[-1].items()}
        catalog = load_lake(settings)
        assert dict(parts.read(catalog)) == committed
        parts.move(catalog, "last")
        cold = catalog.load_table(TABLE.identifier).scan().to_arrow().to_pylist()
        assert sorted((row["n"], row["text"]) for row in cold) == sorted(committed.items())
    transactions = sum(len(client.states) for client in found.clients)
    print(f"{KILLS} kills, {transactions} transactions, {time.monotonic() - started:.0f} s", dict(found.figures))
    assert found.wrong == []
    assert found.figures["reads"] > KILLS
