"""Writes a file that people and steps read while it is replaced: they see the old one or the new one, never a part.

What must outlive a crash of the machine is written by objects.py.
"""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4


def put_file(path: Path, content: bytes) -> bool:
    """Writes the file, and its folder where that is missing, unless it has this content. Returns whether it wrote.

    Raises OSError.
    """
    if path.exists() and path.read_bytes() == content:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return True
