"""The entry point of the command line, where what is imported must wait for the settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from lakehouse_assets.cli.__main__ import COMMANDS, lakehouse, main
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
    assert line.startswith(f"error: {tmp_path}/.pyiceberg.yaml, line 1, can't be read by PyIceberg")


LOADED = """
import json, sys
from lakehouse_assets.cli.__main__ import main
main(["--help"])
print(json.dumps(sorted({"dagster", "pyarrow", "pyiceberg.table", "boto3", "rich.console"} & sys.modules.keys())))
"""


def test_help_imports_nothing_slow_and_shows_each_command_whole() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], cwd=ROOT, capture_output=True, text=True, check=True)
    *shown, loaded = done.stdout.splitlines()
    assert json.loads(loaded) == []
    assert [line.split()[0] for line in shown[shown.index("Commands:") + 1 :]] == [*COMMANDS]
    assert not [line for line in shown[1:] if line.endswith("...")]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_its_name_and_explains_its_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = lakehouse.get_command(click.Context(lakehouse), name)
    assert command
    assert command.name == name
    assert all(one.help for one in command.params if isinstance(one, click.Option))
    assert main([name, "-h"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: lakehouse {name} ")


def test_without_a_command_the_help_is_shown_and_wrong_arguments_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 0
    assert "Commands:" in capsys.readouterr().out
    for wrong in (["runs"], ["run", "--tables"], ["plan", "--level=sort"], ["trace"], ["ui", "--port=x"]):
        assert main(wrong) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("Usage: lakehouse ")


def test_shells_complete_commands_and_options() -> None:
    def completed(*words: str) -> list[str]:
        environment = os.environ | {
            "_LAKEHOUSE_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(["lakehouse", *words]),
            "COMP_CWORD": str(len(words)),
        }
        command = [sys.executable, "-m", "lakehouse_assets.cli"]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60)
        return [line.removeprefix("plain,") for line in done.stdout.splitlines()]

    assert completed("ro") == ["rollback"]
    assert completed("maintain", "--a") == ["--apply", "--allow-large"]


def test_errors_of_use_are_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "nyc.flights"]) == 1
    assert capsys.readouterr().err.startswith(f"error: {tmp_path} and the folders above have no pyproject.toml")
