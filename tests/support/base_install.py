"""An interpreter that finds only what an installation without extras has: the closure of pyproject.toml's dependencies.
``python -m tests.support.base_install MODULE…`` imports the modules and prints those that it can't."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def hidden(*extras: str) -> set[str]:
    """The top-level modules that are installed here, and that the wheel with these extras doesn't bring."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    wanted = [*project["dependencies"]]
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    brought = _closure(wanted)
    return {
        module
        for module, distributions in packages_distributions().items()
        if not any(canonicalize_name(name) in brought for name in distributions)
    } - {"lakehouse_assets", "_pytest", "pytest"}


def _closure(wanted: list[str]) -> set[str]:
    """The names of the distributions that these requirements install."""
    found: set[tuple[str, str]] = set()
    left = [(Requirement(text), "") for text in wanted]
    while left:
        requirement, of_extra = left.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": of_extra}):
            continue
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) not in found:
                found.add((name, extra))
                try:
                    left += [(Requirement(text), extra) for text in requires(name) or ()]
                except PackageNotFoundError:  # of another system
                    continue
    return {name for name, _ in found}


# What sitecustomize.py says, which Python runs at its start: a finder that is asked first finds none of these.
CUSTOMIZATION = """
import sys
class Hidden:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden)
"""


def site_customization(*extras: str) -> str:
    """The text of a sitecustomize.py by which Python finds no hidden module, in all processes with it on their path."""
    return CUSTOMIZATION.format(hidden=sorted(hidden(*extras)))


def importable(names: Iterable[str]) -> set[str]:
    """Those of the modules that can be imported without extras."""
    command = [sys.executable, "-m", "tests.support.base_install", *names]
    done = subprocess.run(command, cwd=PYPROJECT.parent, check=True, stdout=subprocess.PIPE, text=True)
    return {*names} - {*done.stdout.split()}


if __name__ == "__main__":
    exec(site_customization())
    for name in sys.argv[1:]:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            print(name)
            print(error, file=sys.stderr)
