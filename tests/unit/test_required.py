"""What the tests do where a machine lacks what they need: skipped, and with LAKEHOUSE_REQUIRE_ALL=1 failed.
What each of them needs is in its own file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.versions import COMBINATIONS


@pytest.mark.parametrize(("required", "status", "told"), [("0", 0, "2 skipped"), ("1", 1, "2 errors")])
def test_versions_without_an_environment(tmp_path: Path, required: str, status: int, told: str) -> None:
    one = "tests/integration/test_versions.py::test_a_range_lands_as_one_commit_and_a_rerun_changes_nothing"
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", one],
        env={**os.environ, "LAKEHOUSE_CACHE": str(tmp_path), "LAKEHOUSE_REQUIRE_ALL": required},
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
    )
    assert (tests.returncode, told in tests.stdout) == (status, True), tests.stdout
    assert all(f"no environment for {combination}" in tests.stdout for combination in COMBINATIONS)
