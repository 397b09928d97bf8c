"""Makes a project: a folder with a code location of one domain, whose one table `lakehouse run` fills.

Which folder is a project is project.py's; what may be declared in one, docs/options.md tells.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path

from lakehouse_assets.cli.project import project_of
from lakehouse_assets.environment.machine import command
from lakehouse_assets.errors import LakehouseError
from lakehouse_assets.first_table import STEPS, TABLES

NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")
FILES: Mapping[str, str] = {
    "pyproject.toml": """\
[project]
name = "{name}"
version = "0.1.0"
requires-python = ">=3.11,<3.14"
dependencies = ["lakehouse-assets"]

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
    "{package}/steps.py": STEPS,
}


def make_project(name: str, parent: Path) -> str:
    """Writes the project into a new folder of that name, and returns what to type next.

    The Python package, the domain and the Iceberg namespace have the name as well, with ``_`` for ``-``. Raises
    LakehouseError for a name that can't be one, or that is taken, and inside of a project; OSError.
    """
    if not NAME.fullmatch(name) or iskeyword(name):
        raise LakehouseError(
            f"{name!r} can't be a project's name: lower case, digits, - and _, a letter first, at most 40 of them, "
            "and no word of Python"
        )
    package, folder = name.replace("-", "_"), parent / name
    if find_spec(package) is not None:
        raise LakehouseError(f"{package} is the name of a Python package that is installed; choose another name")
    if (outer := project_of(parent)) is not None:
        raise LakehouseError(f"{outer} is a project already; a further domain there is a further Domain(…)")
    if folder.exists():
        raise LakehouseError(f"{folder} exists already")
    for path, text in FILES.items():
        file = folder / path.format(package=package)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.format(name=name, package=package))
    commands = (command(one, folder) for one in ("setup", "run", "ui"))
    return "\n  ".join([f"made {folder}; now:", f"cd {name}", *commands])
