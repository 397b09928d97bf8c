"""The entry point of the command line, where what is imported must wait for the settings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.mark.parametrize("command", [["lakehouse_assets.cli", "run"], ["lakehouse_assets.cli", "ui"]])
def test_a_configuration_that_pyiceberg_can_not_read_is_refused_in_one_line(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / ".pyiceberg.yaml").write_text("catalog: [a, {b: c}\n")
    environment = {**os.environ, "PYICEBERG_HOME": str(tmp_path), "LAKEHOUSE_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-m", *command], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {tmp_path}/.pyiceberg.yaml, line 1, is not what PyIceberg reads")
