"""Finds and makes projects: folders whose pyproject.toml names a code location."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Mapping
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path

import click

from lakehouse_assets.environment.machine import command
from lakehouse_assets.errors import LakehouseError
from lakehouse_assets.first_table import QUERY, STEPS, TABLES, TEST

FILE = "pyproject.toml"


@click.command()
@click.argument("name")
@click.option("--sql", is_flag=True, help="Make the table's step a query instead of a Python function.")
def new(name: str, sql: bool) -> None:
    """Make a project: a folder with its first table.

    NAME is the folder's; with _ for - also that of its package, its domain and its namespace.
    """
    print(make_project(name, Path.cwd(), sql=sql))


def enter_project() -> None:
    """Makes the project's folder the working directory, and importable.

    Dagster finds the code location there, and LAKEHOUSE_HOME is there by default. Raises LakehouseError outside of
    projects.
    """
    here = Path.cwd()
    folder = project_of(here)
    if folder is None:
        raise LakehouseError(
            f"{here} and the folders above have no {FILE} with a table [tool.dg.project], which names a code location; "
            "`lakehouse new shop` creates a project in the folder shop"
        )
    os.chdir(folder)
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def project_of(place: Path) -> Path | None:
    """Returns the nearest project at or above a folder, if any. Raises LakehouseError for an unreadable file."""
    return next((folder for folder in (place, *place.parents) if _is_project(folder)), None)


def _is_project(folder: Path) -> bool:
    if not (folder / FILE).is_file():
        return False
    try:
        tool = tomllib.loads((folder / FILE).read_text()).get("tool", {})
    except tomllib.TOMLDecodeError as error:
        raise LakehouseError(f"{folder / FILE} can't be read: {error}") from error
    return not {"module_name", "modules"}.isdisjoint(tool.get("dagster", {})) or "project" in tool.get("dg", {})


def root_packages() -> list[str]:
    """Returns the top-level packages that the project's file, in the working folder, names."""
    tool = tomllib.loads(Path(FILE).read_text()).get("tool", {})
    named = [tool.get("dg", {}).get("project", {}).get("root_module"), tool.get("dagster", {}).get("module_name")]
    modules = [*filter(None, named), *(one.get("name") for one in tool.get("dagster", {}).get("modules", ()))]
    return sorted({module.partition(".")[0] for module in modules})


# The name of a project, and also of its Python package, domain and Iceberg namespace.
NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")
FILES: Mapping[str, str] = {
    "pyproject.toml": """\
[project]
name = "{name}"
version = "0.1.0"
requires-python = ">=3.11,<3.14"
dependencies = ["lakehouse-assets"]

[tool.pytest.ini_options]
pythonpath = ["."]

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "{package}"
code_location_name = "{package}"
""",
    ".gitignore": """\
.lakehouse/
.venv/
__pycache__/
""",
    "{package}/__init__.py": "",
    "{package}/definitions.py": """\
from lakehouse_assets import Domain, code_location, tables_of
from {package} import tables

defs = code_location(Domain("{package}", tables=tables_of(tables)))
""",
    "{package}/tables.py": TABLES,
    "tests/test_orders.py": TEST,
}


def make_project(name: str, parent: Path, *, sql: bool = False) -> str:
    """Writes a new project's folder, and returns what to type next.

    sql: whether its table's step is a query. The Python package, the domain and the Iceberg namespace have its name,
    with ``_`` for ``-``. Raises LakehouseError for an invalid or taken name, or inside a project; OSError.
    """
    if not NAME.fullmatch(name) or iskeyword(name):
        raise LakehouseError(
            f"{name!r} can't be a project's name. Use at most 40 lower-case letters, digits, - and _, begin with a "
            "letter, and avoid Python's keywords"
        )
    package, folder = name.replace("-", "_"), parent / name
    if find_spec(package) is not None:
        raise LakehouseError(f"{package} is the name of an installed Python package; choose another name")
    if (outer := project_of(parent)) is not None:
        raise LakehouseError(f"{outer} is already a project; to add a domain to it, add another Domain(…)")
    if folder.exists():
        raise LakehouseError(f"{folder} exists already")
    step = "orders.sql" if sql else f"{package}.steps:orders"
    names = {"name": name, "package": package, "step": step, "file": "orders.sql" if sql else "steps.py"}
    for path, text in FILES.items():
        file = folder / path.format(package=package)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.format_map(names))
    (folder / package / names["file"]).write_text(QUERY if sql else STEPS)
    commands = (command(one, folder) for one in ("setup", "run", "ui"))
    return "\n  ".join([f"made {folder}; now:", f"cd {name}", *commands])
