"""What the rooms of the code promise: imports lead downwards, Dagster and Spark never mix, nothing cleans up in a fork.
Held by drawing the graph, by lint, by reading, by a fresh interpreter."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from scripts.rooms import CORE, FLOOR_OF, Checkout, circle, drawing, room_of

ROOT = Path(__file__).parents[2]
SLOW_OR_FOREIGN = (
    *("pyspark", "py4j", "pyarrow", "polars", "duckdb", "matplotlib"),
    *("boto3", "botocore", "dagster_aws", "dagster_pyspark"),
)
NOT_NEEDED_TO_LOAD = (
    *("sqlalchemy", "alembic", "strictyaml", "pyparsing", "pyiceberg.table", "pyiceberg.catalog", "pyiceberg.manifest"),
    *(
        "dagster._core.storage.event_log",
        "dagster._core.execution.backfill",
        "lakehouse_assets.extensions.queue.sensor",
    ),
    *("lakehouse_assets.run.table_run", "lakehouse_assets.commit.snapshot", "lakehouse_assets.drive.loop"),
    *(
        "lakehouse_assets.maintenance.health.look",
        "lakehouse_assets.maintenance.due_tick",
        "lakehouse_assets.maintenance.collect.trash",
    ),
)
"""What takes long to import and only runs, ticks or configured catalogs need: half of what loading took."""
WITHOUT_PYSPARK = """
import importlib.abc, json, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from lakehouse_assets.definitions import defs
defs.get_repository_def()
print(json.dumps(sorted(sys.modules)))
"""
DESTRUCTIVE = re.compile(r"purge|expire_snapshots|remove_orphan_files", re.IGNORECASE)
MENTIONS_STAGE = re.compile(r"\bstage\b|\bSTAGE\b")


def test_imports_between_rooms_lead_downwards() -> None:
    checkout = Checkout(ROOT)
    assert set(checkout.rooms) <= set(FLOOR_OF), "a room without a floor (scripts/rooms.py)"
    assert not checkout.not_downwards(), drawing(checkout)


def test_the_core_knows_no_feature() -> None:
    """Its rooms import each other only, so a new feature is one folder that plugs in."""
    found = [one for one in Checkout(ROOT).imports if room_of(one.source) in CORE]
    assert not [one.place for one in found if room_of(one.target) not in CORE]
    assert {"run", "drive", "commit", "worker", "wire", "declare", "environment"} <= CORE
    assert not {room for room in CORE if room.startswith(("extensions", "inputs", "maintenance"))}


def test_files_do_not_import_each_other_in_circles() -> None:
    assert not circle(Checkout(ROOT).files_graph)


def test_the_graph_knows_imports_in_functions_and_for_types_only_and_relative_ones(tmp_path: Path) -> None:
    files = {
        "lakehouse_assets/run/asset.py": "def f():\n    from lakehouse_assets.drive import loop\n",
        "lakehouse_assets/drive/loop.py": (
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..run.asset import a, b\n"
        ),
        "lakehouse_assets/domains/one/tables.py": "import lakehouse_assets.environment.base\n",
        "lakehouse_assets/domains/two/tables.py": "import lakehouse_assets.run.asset as asset\n",
        "lakehouse_assets/environment/base.py": "",
        "lakehouse_assets/environment/launchers/base.py": "from lakehouse_assets.drive.loop import main\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    checkout = Checkout(tmp_path)
    assert checkout.rooms_graph == {
        "domains": {"run": 1, "environment": 1},
        "run": {"drive": 1},
        "drive": {"run": 1},
        "environment": {"drive": 1},
    }
    assert set(circle(checkout.files_graph)) == {"lakehouse_assets.drive.loop", "lakehouse_assets.run.asset"}
    assert [line.partition(":")[0] for line in checkout.not_downwards()] == [
        "lakehouse_assets/drive/loop.py",
        "lakehouse_assets/environment/launchers/base.py",
    ]
    assert checkout.size("domains") == (2, 2, 6)


def test_definitions_load_without_pyspark_and_import_nothing_slow() -> None:
    settings = ("LAKEHOUSE_", "PYICEBERG_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(settings)}
    done = subprocess.run([sys.executable, "-c", WITHOUT_PYSPARK], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert not {*SLOW_OR_FOREIGN, *NOT_NEEDED_TO_LOAD} & {*loaded}


@pytest.mark.parametrize("name", [name for name in NOT_NEEDED_TO_LOAD if name.startswith(("lakehouse", "pyiceberg"))])
def test_what_must_not_be_loaded_exists(name: str) -> None:
    assert find_spec(name)


@pytest.mark.parametrize(
    ("path", "code", "config"),
    [
        ("lakehouse_assets/domains/nyc/tables.py", "from pyspark.sql import functions", None),
        ("lakehouse_assets/run/asset.py", "import py4j", None),
        ("lakehouse_assets/run/asset.py", "from lakehouse_assets.worker.stage import stage", None),
        ("lakehouse_assets/environment/catalog.py", "import boto3", None),
        ("lakehouse_assets/domains/nyc/report.py", "import polars as pl", None),
        ("lakehouse_assets/worker/stage.py", "import dagster as dg", None),
        ("lakehouse_assets/domains/nyc/steps.py", "from dagster import asset", "lakehouse_assets/worker/ruff.toml"),
        ("lakehouse_assets/inputs/worker.py", "import dagster as dg", "lakehouse_assets/worker/ruff.toml"),
        ("lakehouse_assets/extensions/sources/hook.py", "from pyspark.sql import functions", None),
    ],
)
def test_lint_refuses_what_crosses_the_border(path: str, code: str, config: str | None) -> None:
    options = ["--config", str(ROOT / config)] if config else []
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--select", "TID", *options]
    done = subprocess.run(
        [*command, "--stdin-filename", path, "-"], cwd=ROOT, input=f"{code}\n", capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "TID25" in done.stdout


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("lakehouse_assets/worker/stage.py", "from pyspark.sql import functions"),
        ("lakehouse_assets/domains/nyc/steps.py", "from pyspark.sql import functions"),
        ("lakehouse_assets/run/asset.py", "import dagster as dg"),
        ("lakehouse_assets/extensions/sources/worker.py", "from pyspark.sql import functions"),
    ],
)
def test_lint_lets_each_room_have_its_own(path: str, code: str) -> None:
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--select", "TID", "--stdin-filename", path, "-"]
    done = subprocess.run(command, cwd=ROOT, input=f"{code}\n", capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_nothing_purges_expires_or_removes_orphans_in_a_fork() -> None:
    """In a fork they destroy the target or its time travel: the fork's files are the target's."""
    found = [
        f"{path.relative_to(ROOT)}: {text}"
        for path in Checkout(ROOT).files.values()
        for text in _statements(path.read_text())
        if DESTRUCTIVE.search(text) and MENTIONS_STAGE.search(text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "code",
    [
        'spark.sql(f"CALL stage.system.expire_snapshots(table => {name})")',
        'spark.sql(\n    "CALL stage.system"\n    ".remove_orphan_files(table => \'fork.t\')"\n)',
        'spark.sql(f"DROP TABLE {STAGE}.fork.t PURGE")',
        "load_catalog('stage').purge_table(name)",
    ],
)
def test_cleaning_up_in_a_fork_is_noticed(code: str) -> None:
    assert [text for text in _statements(code) if DESTRUCTIVE.search(text) and MENTIONS_STAGE.search(text)]


def test_cleaning_up_on_the_lake_is_allowed() -> None:
    code = "spark.sql(\"CALL lake.system.expire_snapshots(table => 'nyc.flights')\")"
    assert not [text for text in _statements(code) if DESTRUCTIVE.search(text) and MENTIONS_STAGE.search(text)]


def _statements(code: str) -> list[str]:
    """The simple statements, each as one text, without docstrings and comments."""
    nodes = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.stmt) and not hasattr(node, "body")]
    return [ast.unparse(node) for node in nodes if not _is_text(node)]


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
