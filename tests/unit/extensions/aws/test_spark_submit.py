"""The shipped code: the same bytes for the same content, a user's packages among them; it runs from inside its zip."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lakehouse_assets.environment.machine import content_hash, sources
from lakehouse_assets.extensions.aws.job_runs import entry_point, zipped

WHERE = """
from lakehouse_assets.wire import work
import mine, own.without.init
print(work.__file__, own.__file__)
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on Python's path with a package and a module of a user."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").touch()
    (tmp_path / "own" / "steps.py").write_text("1")
    (tmp_path / "mine.py").write_text("2")
    (tmp_path / "own" / "without").mkdir()
    (tmp_path / "own" / "without" / "init.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_code_runs_from_its_zip(packages: Path, tmp_path: Path) -> None:
    archive = tmp_path / "code.zip"
    archive.write_bytes(zipped(sources(("own", "mine"))))
    done = subprocess.run(
        [sys.executable, "-c", WHERE], env={"PYTHONPATH": str(archive)}, cwd="/", capture_output=True, text=True
    )
    assert done.stdout.split() == [f"{archive}/lakehouse_assets/wire/work.py", f"{archive}/own/__init__.py"]


def test_the_same_content_gives_the_same_bytes() -> None:
    assert zipped(sources()) == zipped(sources())


def test_the_hash_tells_every_change_and_nothing_else(packages: Path) -> None:
    def found() -> str:
        return content_hash.__wrapped__(("own", "mine"))

    hashes = [content_hash.__wrapped__(), found()]
    (packages / "own" / "a.py").write_text("1")
    hashes.append(found())
    (packages / "own" / "a.py").rename(packages / "own" / "b.py")
    hashes.append(found())
    assert len(set(hashes)) == 4
    (packages / "own" / "__pycache__").mkdir()
    (packages / "own" / "__pycache__" / "b.pyc").write_bytes(b"2")
    (packages / "elsewhere.py").write_text("3")
    assert found() == hashes[-1]


def test_a_package_that_is_not_there_is_named() -> None:
    with pytest.raises(ImportError, match="nowhere"):
        [*sources(("nowhere",))]


def test_the_entry_point_runs_the_worker_and_ends_with_its_status(tmp_path: Path) -> None:
    (tmp_path / "a_worker").mkdir()
    (tmp_path / "a_worker" / "__main__.py").write_text("def main():\n    return 75\n")
    (tmp_path / "worker.py").write_bytes(entry_point("a_worker"))
    assert subprocess.run([sys.executable, tmp_path / "worker.py"], cwd=tmp_path).returncode == 75
