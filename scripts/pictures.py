"""Remakes the pictures of README.md and docs/ from a real run: the chart that it draws, an asset's pages in the UI.
The flow is no picture of a run: docs/pictures/flow.svg is written by hand."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import expect, sync_playwright

from lakehouse_assets.environment.settings import read_settings
from scripts.local_sources import local_sources
from tests.support.dagster_server import DagsterServer, dagster_server

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
# As wide as pages show them on a screen of high density.
WIDTH = 1400
COLORS = 256
VIEW = {"width": 1280, "height": 800}
QUIET = ("--no-sandbox", "--disable-gpu")
# By picture: the asset and its view, and texts that are there once it is complete.
PAGES = {
    "partitions": ("nyc/flights?view=partitions&partition=2013-12-31", "Materialized (365)", "snapshot_id"),
    "audit": ("nyc/flights?view=checks&checkDetail=audit", "audit", "Passed"),
}


LIVE = {"fresh": ("live/delays_now?view=overview", "Plots")}
REPLAYED_MINUTES = 10


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.pictures", description=__doc__)
    parser.add_argument("--home", type=Path, help="a LAKEHOUSE_HOME that `make run` has filled; without it, a new one")
    home = parser.parse_args(arguments).home
    if home:
        return _remake(home)
    with tempfile.TemporaryDirectory(prefix="pictures-") as folder:
        environment = {**os.environ, "LAKEHOUSE_HOME": folder}
        subprocess.run([sys.executable, "-m", "lakehouse_assets.cli", "run"], cwd=ROOT, env=environment, check=True)
        return _remake(Path(folder))


def _remake(home: Path) -> int:
    (chart,) = (home / "reports").glob("*.png")
    _keep(chart.read_bytes(), "chart")
    with dagster_server(home) as server:
        _take(server, PAGES)
    with tempfile.TemporaryDirectory(prefix="pictures-") as folder:
        Path(folder).chmod(0o711)  # below it is the folder of PostgreSQL's own user
        return _remake_live(Path(folder))


def _remake_live(home: Path) -> int:
    """Replays for some minutes, so that the report has as many points to be plotted."""
    environment = {**os.environ, "LAKEHOUSE_HOME": str(home)}
    with local_sources(read_settings(environment)) as sources, dagster_server(home, **sources) as server:
        replay = subprocess.Popen([sys.executable, "-m", "scripts.replay"], cwd=ROOT, env=environment)
        try:
            time.sleep(60 * REPLAYED_MINUTES)
            _take(server, LIVE, scroll_to="freshness_seconds")
        finally:
            replay.terminate()
            replay.wait()
    return 0


def _take(server: DagsterServer, pages: Mapping[str, Sequence[str]], *, scroll_to: str = "") -> None:
    """scroll_to: a text that is there once the last one was clicked."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=QUIET)
        page = browser.new_page(viewport=VIEW)
        for name, (view, *texts) in pages.items():
            page.goto(f"{server.url}/assets/{view}")
            for text in texts:
                expect(page.get_by_text(text, exact=True).first).to_be_visible(timeout=120_000)
            if scroll_to:
                page.get_by_text(text, exact=True).first.click()
                page.get_by_text(scroll_to, exact=True).first.scroll_into_view_if_needed(timeout=120_000)
                page.wait_for_timeout(3000)  # the plots are drawn in steps
            _keep(page.screenshot(animations="disabled"), name)
        browser.close()


def _keep(png: bytes, name: str) -> None:
    image = Image.open(BytesIO(png)).convert("RGB")
    image.thumbnail((WIDTH, WIDTH), Image.Resampling.LANCZOS)
    # The pages are flat: few colours look the same and take a third of the bytes.
    image.quantize(COLORS, dither=Image.Dither.NONE).save(PICTURES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    sys.exit(main())
