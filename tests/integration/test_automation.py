"""No update of upstream is lost, on a real daemon: whatever happens at the same time, one more run is requested.
The same tick by tick, with more cases, is in unit/run/test_updated.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import read_settings
from tests.support.dagster_server import DagsterServer, dagster_server, until

UP, DOWN, SOURCE, RETRIED = (("demo", name) for name in ("up", "down", "source", "retried"))
# Days that are updated between the request and the next tick, while the run works, while a person's own run works; and
# one whose run fails.
ASKED, WORKED, BY_HAND, FAILED = (f"2024-01-0{day}" for day in (1, 3, 5, 7))
DAY_TAGS = ("dagster/partition", "dagster/asset_partition_range_start")
QUIET_TICKS = 2


def runs(server: DagsterServer, table: tuple[str, str], day: str) -> list[str]:
    """The states of the runs of a table for a day, oldest first."""
    return [run["status"] for run in server.runs_of(table) if day in [run["tags"].get(tag) for tag in DAY_TAGS]]


def hold(server: DagsterServer, days: list[str]) -> None:
    """Make workers wait while their day is among these. The file is replaced at once: workers read it all the time."""
    written = server.home / "hold.new"
    written.write_text(" ".join(days))
    written.rename(server.home / "hold")


def started(server: DagsterServer) -> set[str]:
    """The days whose workers began."""
    log = server.home / "started"
    return {line.split()[1] for line in log.read_text().splitlines()} if log.exists() else set()


@pytest.mark.long("Waits for many ticks of a daemon; test_updated.py evaluates the same conditions without.")
@pytest.mark.server
def test_no_update_is_lost_to_a_request_a_run_a_persons_run_or_a_failure(tmp_path: Path) -> None:
    with dagster_server(tmp_path / "home", "tests.support.automation_location", LAKEHOUSE_MAX_WORKERS="4") as server:

        def requested() -> object:
            return server.runs_of(DOWN) + server.runs_of(RETRIED)

        held = [ASKED, WORKED, BY_HAND]
        hold(server, held)
        (server.home / "fail").write_text(f"{FAILED} once")
        until(lambda: server.ticks("automation"))
        server.launch(DOWN, BY_HAND)
        server.report(UP, ASKED)
        server.report(SOURCE, FAILED)
        # A run has planned its partitions once it is queued; later updates do not reach it.
        until(lambda: set(runs(server, DOWN, ASKED)) - {"NOT_STARTED"}, state=requested)
        server.report(UP, ASKED)
        server.report(UP, WORKED)
        until(lambda: {WORKED, BY_HAND} <= started(server), state=requested)
        server.report(UP, WORKED)
        server.report(UP, BY_HAND)
        seen = server.ticks("automation")
        until(lambda: server.ticks("automation") > seen)
        assert [runs(server, DOWN, day) for day in held] == [["STARTED"]] * 3
        hold(server, [])
        for day in held:
            until(lambda day=day: runs(server, DOWN, day) == ["SUCCESS"] * 2, state=requested)
        until(lambda: runs(server, RETRIED, FAILED) == ["FAILURE", "SUCCESS"], state=requested)
        seen, before = server.ticks("automation"), requested()
        until(lambda: server.ticks("automation") >= seen + QUIET_TICKS)
        assert requested() == before
    lake = load_lake(read_settings({"LAKEHOUSE_HOME": str(tmp_path / "home")}))
    assert [len(list(lake.load_table(".".join(table)).snapshots())) for table in (DOWN, RETRIED)] == [6, 1]
