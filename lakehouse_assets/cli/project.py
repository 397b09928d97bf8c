"""Finds the project that a command works on: the nearest folder whose pyproject.toml names a Dagster code location.

What the file says is Dagster's to read (pipeline.py, ``dagster dev``). What new projects hold is in new_project.py.
"""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path

from lakehouse_assets.errors import LakehouseError

FILE = "pyproject.toml"


def enter_project() -> None:
    """Makes the project's folder this process's working directory, and a place that Python imports from.

    Dagster looks there for the code location, and LAKEHOUSE_HOME is there by default. Raises LakehouseError where
    neither the working directory nor a folder above is a project.
    """
    here = Path.cwd()
    folder = project_of(here)
    if folder is None:
        raise LakehouseError(
            f"{here} and the folders above have no {FILE} with a table [tool.dg.project], which names a code location; "
            "`lakehouse new shop` makes a project, in a folder shop"
        )
    os.chdir(folder)
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def project_of(place: Path) -> Path | None:
    """Returns the nearest folder, the place or one above it, that is a project. Raises as enter_project() does."""
    return next((folder for folder in (place, *place.parents) if _is_project(folder)), None)


def _is_project(folder: Path) -> bool:
    """Tells whether a folder has a pyproject.toml in which Dagster finds a code location."""
    if not (folder / FILE).is_file():
        return False
    try:
        tool = tomllib.loads((folder / FILE).read_text()).get("tool", {})
    except tomllib.TOMLDecodeError as error:
        raise LakehouseError(f"{folder / FILE} can't be read: {error}") from error
    return not {"module_name", "modules"}.isdisjoint(tool.get("dagster", {})) or "project" in tool.get("dg", {})
