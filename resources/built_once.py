"""Building something once in the cache: beside its place, by a process of its own, renamed when it is complete.
What is built is decided elsewhere (spark_jars.py, class_data.py)."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from resources.spark_versions import environment


@contextmanager
def scratch_beside(target: Path) -> Iterator[Path]:
    """A scratch directory on the target's own file system, so that the result can be renamed to ``target``."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".partial-", dir=target.parent))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def put_in_place(result: Path, target: Path) -> None:
    """Rename ``result`` to ``target``. Where another set-up was faster, its result stays: it has the same content."""
    try:
        result.rename(target)
    except OSError:
        if not target.exists():
            raise


def run(command: Iterable[object], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command in Spark's environment; ``stdout`` of the result has its whole output."""
    return subprocess.run(
        [str(part) for part in command],
        env={**os.environ, **environment(), **env},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def last_lines(text: str, lines: int = 30) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])


def digest(parts: Iterable[str]) -> str:
    """16 hex digits that name a set-up with these parts."""
    return hashlib.sha256(json.dumps(list(parts)).encode()).hexdigest()[:16]
