"""This project's own code as content: its hash, by which workers and orchestrators tell whether they run the same.
Building and shipping it is the launchers' business."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("lakehouse_assets", "resources")


def sources() -> Iterator[tuple[str, bytes]]:
    """The files of the packages as (path relative to the root, content), in order; bytecode left out."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(ROOT).as_posix(), path.read_bytes()


@cache
def content_hash() -> str:
    """16 hex digits over the names and contents of sources()."""
    digest = hashlib.sha256()
    for name, content in sources():
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]
