"""What is printed to nobody, to a full disk, or in another encoding."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

PRINTS = """
import os, sys
from lakehouse_assets.environment.output import lost_output, use_unfailing_streams
use_unfailing_streams()
for line in range(3000):
    print("─── table …", line)
os.write(int(sys.argv[1]), f"{lost_output()}".encode())
assert os.open("/dev/null", os.O_RDONLY) > 2
"""


def printed(command: str, tmp_path: Path, **environment: str) -> tuple[int, str, str]:
    """The exit status, what it said at its end, and its standard error. command: a shell's, with $PYTHON."""
    (tmp_path / "prints.py").write_text(PRINTS)
    call = command.replace("$PYTHON", f"{sys.executable} {tmp_path}/prints.py 9 9> {tmp_path}/said")
    options: dict[str, Any] = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(["bash", "-o", "pipefail", "-c", call], env=env, timeout=60, **options)
    return done.returncode, (tmp_path / "said").read_text(), done.stderr


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("{ $PYTHON; } | head -1", "None"),
        ("$PYTHON >&-", "None"),
        ("$PYTHON >&- 2>&- <&-", "None"),
        ("$PYTHON > /dev/full", "standard output can't be written: No space left on device"),
        ("$PYTHON > /dev/full 2>&1", "standard output can't be written: No space left on device"),
    ],
)
def test_output_that_can_not_be_written_raises_nothing(command: str, said: str, tmp_path: Path) -> None:
    assert printed(command, tmp_path) == (0, said, "")


def test_characters_that_the_encoding_lacks(tmp_path: Path) -> None:
    assert printed(f"$PYTHON > {tmp_path}/out", tmp_path, PYTHONIOENCODING="latin-1") == (0, "None", "")
    assert (tmp_path / "out").read_text().splitlines()[0] == "--- table ... 0"


def test_a_command_that_only_prints_has_failed_where_its_output_is_lost(tmp_path: Path) -> None:
    (tmp_path / "orders.csv").write_text("id,amount\n1,2.5\n")
    call = [sys.executable, "-m", "lakehouse_assets.cli", "columns", f"{tmp_path}/orders.csv"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(call, cwd=ROOT, timeout=120, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "error: standard output can't be written: No space left on device\n")
