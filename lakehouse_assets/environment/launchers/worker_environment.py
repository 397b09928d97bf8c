"""The environment variables of a local worker."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib.util import find_spec

from lakehouse_assets.environment.machine import project_folders, scratch
from lakehouse_assets.environment.settings import read_home

PARENT_PIPE = "LAKEHOUSE_PARENT_PIPE"
"""A worker with this variable ends when its stdin closes (worker/__main__.py)."""


def worker_environment(packages: Iterable[str], of_chunk: Mapping[str, str]) -> dict[str, str]:
    """Returns a worker's variables. packages: of its code. of_chunk: those of its Pipes session."""
    ours = {"PYTHONUNBUFFERED": "1", "TMPDIR": str(scratch(read_home()))}
    # Dagster may have put the code location's folder on the path of this process only, which children don't inherit.
    if path := project_folders(map(find_spec, packages)):
        ours["PYTHONPATH"] = os.pathsep.join([*path, *filter(None, [os.environ.get("PYTHONPATH")])])
    inherited = {name: value for name, value in os.environ.items() if name != PARENT_PIPE}
    return {**inherited, **of_chunk, **ours}
