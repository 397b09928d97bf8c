"""A machine whose spark-submit starts no Spark, but any command: for tests of what becomes of jobs.
What a real one does is spark_node.py's."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.fakes.agent import Process
from tests.support.fakes.spark_node import aws, s3_of
from tests.support.servers import SeaweedFS

ROOT = Path(__file__).parents[3]
SLEEPING = ("sh", "-c", "sleep 600")


@dataclass
class PlainNode:
    """In place of a SparkNode. command: what is run, with the entry point's arguments. s3: where files are stored."""

    folder: Path
    command: Sequence[str] = SLEEPING
    environment: Mapping[str, str] = field(default_factory=lambda: {"PATH": "/usr/bin:/bin"})
    s3: Any = None

    def submit(self, arguments: Sequence[str], log: Path, delay: float = 0.0) -> Process:
        entry_point = arguments.index("--py-files") + 2
        return Process([*self.command, *arguments[entry_point + 1 :]], self.environment, log, delay)

    def store(self, location: str, content: bytes) -> None:
        if self.s3:
            bucket, _, key = location.partition("://")[2].partition("/")
            self.s3.put_object(Bucket=bucket, Key=key, Body=content)


def plain_node(weed: SeaweedFS, folder: Path, command: Sequence[str]) -> PlainNode:
    """The machine, which reaches SeaweedFS and has this checkout's code."""
    own = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "LAKEHOUSE_HOME": str(folder / "home")}
    return PlainNode(folder, command, own | aws(weed), s3_of(weed))
