"""Reads this project's own code as content: the files that workers elsewhere need, and a hash that names them.

They are uploaded by launchers/spark_submit.py.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("lakehouse_assets", "resources")


def sources() -> Iterator[tuple[str, bytes]]:
    """Yields the files of the packages as (path relative to the root, content), in order; bytecode left out.

    The root may be a folder, or the zip that spark-submit has put on Python's path.
    """
    root: Path | zipfile.Path = zipfile.Path(ROOT) if ROOT.is_file() else ROOT
    for package in PACKAGES:
        yield from _files(root / package, package)


@cache
def content_hash() -> str:
    """Returns 16 hex digits over the names and contents of sources()."""
    digest = hashlib.sha256()
    for name, content in sources():
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def _files(folder: Path | zipfile.Path, name: str) -> Iterator[tuple[str, bytes]]:
    entries: list[Path | zipfile.Path] = [*folder.iterdir()]
    for entry in sorted(entries, key=lambda entry: entry.name):
        if entry.is_dir() and entry.name != "__pycache__":
            yield from _files(entry, f"{name}/{entry.name}")
        elif entry.is_file():
            yield f"{name}/{entry.name}", entry.read_bytes()
