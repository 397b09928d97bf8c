"""The three rooms never mix, and nothing cleans up in a fork: held by lint, by reading, by a fresh interpreter."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SLOW_OR_FOREIGN = (
    *("pyspark", "py4j", "pyarrow", "polars", "matplotlib"),
    *("boto3", "botocore", "dagster_aws", "dagster_pyspark"),
)
WITHOUT_PYSPARK = """
import importlib.abc, json, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from lakehouse_assets.definitions import defs
defs.get_repository_def()
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""
DESTRUCTIVE = re.compile(r"purge|expire_snapshots|remove_orphan_files", re.IGNORECASE)
MENTIONS_STAGE = re.compile(r"\bstage\b|\bSTAGE\b")


def _sources() -> list[Path]:
    return sorted([*ROOT.glob("lakehouse_assets/**/*.py"), *ROOT.glob("resources/**/*.py")])


def test_definitions_load_without_pyspark_and_import_nothing_slow() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_PYSPARK], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not set(SLOW_OR_FOREIGN) & set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    ("path", "code", "config"),
    [
        ("lakehouse_assets/domains/nyc/tables.py", "from pyspark.sql import functions", None),
        ("lakehouse_assets/run/asset.py", "import py4j", None),
        ("lakehouse_assets/run/asset.py", "from lakehouse_assets.worker.stage import stage", None),
        ("resources/catalog.py", "import boto3", None),
        ("lakehouse_assets/domains/nyc/report.py", "import polars as pl", None),
        ("lakehouse_assets/worker/stage.py", "import dagster as dg", None),
        ("lakehouse_assets/domains/nyc/steps.py", "from dagster import asset", "lakehouse_assets/worker/ruff.toml"),
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
    ],
)
def test_lint_lets_each_room_have_its_own(path: str, code: str) -> None:
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--select", "TID", "--stdin-filename", path, "-"]
    done = subprocess.run(command, cwd=ROOT, input=f"{code}\n", capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_nothing_purges_expires_or_removes_orphans_in_a_fork() -> None:
    """In a fork they destroy the target or its time travel (the fork's files are the target's)."""
    found = [
        f"{source.relative_to(ROOT)}:{number}: {line.strip()}"
        for source in _sources()
        for number, line in enumerate(source.read_text().splitlines(), start=1)
        if DESTRUCTIVE.search(line) and (MENTIONS_STAGE.search(line) or "worker" in source.parts)
    ]
    assert not found, "\n".join(found)
