"""Remakes the pictures of README.md and docs/ from a real run: the chart that it draws, an asset's pages in the UI.
The flow is no picture of a run: docs/pictures/flow.svg is written by hand."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import expect, sync_playwright

from tests.support.dagster_server import dagster_server

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
# As wide as pages show them on a screen of high density.
WIDTH = 1400
COLORS = 256
VIEW = {"width": 1280, "height": 800}
QUIET = ("--no-sandbox", "--disable-gpu")
# By picture: the asset's view, and texts that are there once it is complete.
PAGES = {
    "partitions": ("partitions&partition=2013-12-31", "Materialized (365)", "snapshot_id"),
    "audit": ("checks&checkDetail=audit", "audit", "Passed"),
}


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
    with dagster_server(home) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=QUIET)
        page = browser.new_page(viewport=VIEW)
        for name, (view, *texts) in PAGES.items():
            page.goto(f"{server.url}/assets/nyc/flights?view={view}")
            for text in texts:
                expect(page.get_by_text(text, exact=True).first).to_be_visible(timeout=120_000)
            _keep(page.screenshot(animations="disabled"), name)
        browser.close()
    return 0


def _keep(png: bytes, name: str) -> None:
    image = Image.open(BytesIO(png)).convert("RGB")
    image.thumbnail((WIDTH, WIDTH), Image.Resampling.LANCZOS)
    # The pages are flat: few colours look the same and take a third of the bytes.
    image.quantize(COLORS, dither=Image.Dither.NONE).save(PICTURES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    sys.exit(main())
