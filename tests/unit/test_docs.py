"""README and docs/ say what is there: paths, make's targets, options, variables, pictures. `make docs` checks links.
What they tell a reader to do is done in integration/test_readme.py."""

from __future__ import annotations

import importlib
import re
import subprocess
from pathlib import Path

import pytest

from lakehouse_assets.environment.computes import compute_variables
from lakehouse_assets.environment.settings import NAMES
from lakehouse_assets.step.window import Window
from scripts import options
from scripts.rooms import FLOORS
from tests.conftest import ROOT
from tests.support.pages import DOCS, PAGES, README, commands, section

DOCUMENTED_ELSEWHERE = {
    *(
        "PARENT_PIPE",
        "JAVA_HOME",
        "REQUIRE_ALL",
        "TEST_IMAGE",
        "TEST_KILLS",
        "TEST_LAKES",
        "TEST_MODEL_TABLES",
        "TEST_ORDER",
    )
}
"""Variables that the image, the workers and the tests set for themselves."""
REFERENCE = ("measured.md", "options.md", "why.md")
EXAMPLES = {"lakehouse_assets/domains/shop/"}
MAP = ROOT / "docs" / "map.md"
PICTURES = ROOT / "docs" / "pictures"
ids = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def test_the_readme_is_read_in_a_few_minutes() -> None:
    assert len(README.read_text().splitlines()) <= 120


def test_every_page_is_linked_from_the_readme() -> None:
    assert {f"docs/{page.name}" for page in DOCS} <= set(re.findall(r"\]\((docs/[\w-]+\.md)\)", README.read_text()))


@ids
def test_paths_are_of_this_repository(page: Path) -> None:
    tops = {path.name for path in ROOT.iterdir()}
    rooms = {path.name for path in (ROOT / "lakehouse_assets").iterdir() if path.is_dir()}
    for text in re.findall(r"`([\w./-]+)`", page.read_text()):
        if text in EXAMPLES:
            continue
        top, slash, _ = text.partition("/")
        if slash and top in tops:
            assert (ROOT / text).exists(), f"{page.name} names {text}"
        elif slash and top in rooms:  # the map leaves lakehouse_assets/ out
            assert (ROOT / "lakehouse_assets" / text).exists(), f"{page.name} names {text}"


def test_the_map_has_the_floors_that_are_checked() -> None:
    rows = re.findall(r"^\| (\d+) \| `(?:lakehouse_assets/)?([\w/]+?)(?:/|\.py)` \|", MAP.read_text(), re.MULTILINE)
    floors = {room: len(FLOORS) - 1 - number for number, rooms in enumerate(FLOORS) for room in rooms}
    named = {room.replace("/", ".").removesuffix(".builtin"): int(floor) for floor, room in rows}
    assert named == floors


@ids
def test_imports_work(page: Path) -> None:
    for module, name in re.findall(r"(?:`|^)from ([\w.]+) import (\w+)", page.read_text(), re.MULTILINE):
        if ".shop" not in module:  # the example
            assert hasattr(importlib.import_module(module), name), f"{page.name} imports {name} from {module}"


@ids
def test_makes_targets_exist(page: Path) -> None:
    named = set(re.findall(r"\bmake ([a-z][a-z-]+)`", page.read_text()))
    named |= {command.split()[1] for command in commands(page) if command.startswith("make ")}
    for target in named:
        make = ["make", "--no-print-directory", "--dry-run", "--assume-old=setup", target]
        done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_the_reference_of_options_is_what_the_docstrings_say() -> None:
    assert options.PAGE.read_text() == options.page(), "make options"


def test_each_option_is_told() -> None:
    assert not re.findall(r"^\| `.*\|  \|$", options.PAGE.read_text(), re.MULTILINE)


def test_pages_by_task_are_short() -> None:
    long = {page.name: len(page.read_text().splitlines()) for page in DOCS if page.name not in REFERENCE}
    assert {name: lines for name, lines in long.items() if lines >= 200} == {}


def test_all_attributes_of_a_window_are_documented() -> None:
    named = set(re.findall(r"`window\.(\w+)`", section(ROOT / "docs" / "first-table.md", "The step")))
    assert named == {name for name in dir(Window()) if not name.startswith("_")} | {"start_date", "end_date"}


def test_all_variables_are_documented() -> None:
    text = "\n".join((ROOT / "docs" / page).read_text() for page in ("operate.md", "aws.md"))
    named = {name for name in re.findall(r"`LAKEHOUSE_([A-Z_]+[A-Z])\b", text) if not name.startswith("SPARK__")}
    of_computes = {name.removeprefix("LAKEHOUSE_") for name in compute_variables()}
    assert named == (set(NAMES) | of_computes) - DOCUMENTED_ELSEWHERE


def test_pictures_are_small_and_shown() -> None:
    links = [(page, path) for page in PAGES for path in re.findall(r"!\[[^]]+\]\((.+?)\)", page.read_text())]
    shown = {(page.parent / path).resolve() for page, path in links}
    assert set(PICTURES.iterdir()) == shown
    assert not [path for path in shown if path.stat().st_size > 150_000]
