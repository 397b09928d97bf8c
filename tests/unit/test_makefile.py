"""The Makefile's recipes, with programs in place of uv and Python that print how they were called."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose uv prints its arguments."""
    for name in ("Makefile", "pyproject.toml", "uv.lock"):
        shutil.copy(ROOT / name, tmp_path)
    for folder in ("scripts", ".venv"):
        (tmp_path / folder).mkdir()
    uv = tmp_path / "scripts" / "uv"
    uv.write_text('#!/bin/sh\necho "uv $@"\n')
    uv.chmod(0o755)
    return tmp_path


def install(checkout: Path, stderr: int) -> list[str]:
    command = ["make", "--no-print-directory", ".venv/.synced"]
    make = subprocess.run(command, cwd=checkout, stdout=subprocess.PIPE, stderr=stderr, text=True, check=True)
    return make.stdout.splitlines()


def test_uv_shows_its_progress_on_a_terminal_only(checkout: Path) -> None:
    reader, terminal = pty.openpty()
    on_a_terminal = install(checkout, terminal)
    os.close(terminal)
    os.close(reader)
    (checkout / ".venv" / ".synced").unlink()
    elsewhere = install(checkout, subprocess.DEVNULL)
    assert on_a_terminal[-1] == "uv sync --locked --compile-bytecode"
    assert elsewhere[-1] == f"{on_a_terminal[-1]} --quiet"


def test_a_wheel_is_built_without_an_environment(checkout: Path) -> None:
    command = ["make", "--no-print-directory", "wheel"]
    made = subprocess.run(command, cwd=checkout, stdout=subprocess.PIPE, text=True, check=True)
    assert made.stdout.splitlines() == ["scripts/uv build --wheel", "uv build --wheel"]


@pytest.mark.parametrize(("chosen", "domain"), [([], "nyc"), (["DOMAIN=trade"], "trade")])
def test_make_run_runs_the_flights_or_the_domain_that_is_named(chosen: list[str], domain: str) -> None:
    command = ["make", "--no-print-directory", "--dry-run", "--assume-old=setup", "run", *chosen]
    environment = {**os.environ, "DOMAIN": "example.com"}
    make = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert make.stdout.split() == [".venv/bin/python", "-m", "lakehouse_assets.cli", "run", "--domain", domain]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ([], ""),
        (["APPLY=0"], ""),
        (["APPLY=1", "LEVELS=collect expire", "TABLES=a.b"], "--apply --level=collect --level=expire a.b"),
        (["ALLOW_LARGE=1"], "--allow-large"),
        (["FORCE=1", "LEVELS=deletes"], "--force --level=deletes"),
    ],
)
def test_make_maintain_changes_something_only_if_it_is_told_so_on_the_command_line(
    chosen: list[str], expected: str
) -> None:
    command = ["make", "--no-print-directory", "--dry-run", "--assume-old=setup", "maintain", *chosen]
    environment = {**os.environ, "APPLY": "1", "LEVELS": "sort"}
    make = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert make.stdout.split() == [".venv/bin/python", "-m", "lakehouse_assets.cli", "maintain", *expected.split()]


def test_make_maintain_refuses_a_switch_that_is_neither_on_nor_off() -> None:
    command = ["make", "--dry-run", "--assume-old=setup", "maintain", "APPLY=no"]
    make = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert make.returncode
    assert "APPLY is no, it must be 1 or 0" in make.stderr


def test_make_verify_trade_takes_its_folder_from_the_command_line_only_and_with_blanks() -> None:
    command = ["make", "--no-print-directory", "--dry-run", "--assume-old=setup", "verify-trade", "DIR=/my files"]
    make = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    assert make.stdout == '.venv/bin/python -m scripts.verify_trade "/my files"\n'
    environment = {**os.environ, "DIR": "/elsewhere"}
    make = subprocess.run(command[:-1], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert make.stdout == '.venv/bin/python -m scripts.verify_trade ""\n'
