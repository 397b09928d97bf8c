"""The shipped code: the same bytes for the same content, runs from inside its zip, knows there what it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from resources import package
from resources.launchers.spark_submit import entry_point, zipped
from resources.package import content_hash, sources

WHAT = """
from lakehouse_assets.protocol import assignment
from resources import package
print(package.ROOT, package.content_hash(), assignment.__file__)
"""


def test_the_code_runs_from_its_zip_and_has_the_hash_of_the_folder(tmp_path: Path) -> None:
    archive = tmp_path / "code.zip"
    archive.write_bytes(zipped(sources()))
    environment = {"PYTHONPATH": str(archive)}
    done = subprocess.run([sys.executable, "-c", WHAT], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == [str(archive), content_hash(), f"{archive}/lakehouse_assets/protocol/assignment.py"]


def test_the_same_content_gives_the_same_bytes() -> None:
    assert zipped(sources()) == zipped(sources())


def test_the_hash_tells_every_change_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in package.PACKAGES:
        (tmp_path / name).mkdir()
    monkeypatch.setattr(package, "ROOT", tmp_path)
    hashes = [content_hash.__wrapped__()]
    (tmp_path / "resources" / "a.py").write_text("1")
    hashes.append(content_hash.__wrapped__())
    (tmp_path / "resources" / "a.py").rename(tmp_path / "resources" / "b.py")
    hashes.append(content_hash.__wrapped__())
    assert len(set(hashes)) == 3
    (tmp_path / "resources" / "__pycache__").mkdir()
    (tmp_path / "resources" / "__pycache__" / "b.pyc").write_bytes(b"2")
    (tmp_path / "elsewhere.py").write_text("3")
    assert content_hash.__wrapped__() == hashes[-1]


def test_the_entry_point_runs_the_worker_and_ends_with_its_status(tmp_path: Path) -> None:
    (tmp_path / "a_worker").mkdir()
    (tmp_path / "a_worker" / "__main__.py").write_text("def main():\n    return 75\n")
    (tmp_path / "worker.py").write_bytes(entry_point("a_worker"))
    assert subprocess.run([sys.executable, tmp_path / "worker.py"], cwd=tmp_path).returncode == 75
