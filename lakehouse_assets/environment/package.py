"""Reads code as content: the packages that workers elsewhere need, and a hash that names them.

They are uploaded by launchers/spark_submit.py. Which packages a step's code is in, protocol/step_code.py finds.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

LIBRARY = "lakehouse_assets"
INSTALLED = ("site-packages", "dist-packages")
VERSION = "0.2.0"
"""Of the library, for pyproject.toml and for workers: a zip on Python's path has no metadata that would tell it."""


def sources(packages: Iterable[str] = ()) -> Iterator[tuple[str, bytes]]:
    """Yields the files of this library and of the packages as (path on Python's path, content), in order.

    packages: top-level names, of packages or of modules that are a file. Bytecode is left out. Raises ImportError for a
    name that is none.
    """
    for package in sorted({LIBRARY, *packages}):
        if (spec := find_spec(package)) is None:
            raise ImportError(f"there is no package {package}")
        if spec.submodule_search_locations is None:
            file = Path(str(spec.origin))
            yield file.name, file.read_bytes()
        for folder in spec.submodule_search_locations or ():
            yield from _files(Path(folder), package)


def project_folders(specs: Iterable[ModuleSpec | None]) -> list[str]:
    """Returns the folders, or zips, that top-level modules lie in, each once, but those of installed packages.

    specs: of the modules; None for one that there is not.
    """
    found = (folder for spec in specs if spec for folder in _folders(spec))
    return [folder for folder in dict.fromkeys(found) if os.path.basename(folder) not in INSTALLED]


def _folders(spec: ModuleSpec) -> Iterator[str]:
    """Yields the folders, or the zip, that a top-level module lies in; none for one that is in no file."""
    places = spec.submodule_search_locations or ([str(spec.origin)] if spec.has_location else [])
    yield from map(os.path.dirname, places)


@cache
def installed_with(module: str) -> frozenset[str]:
    """Returns the top-level modules of the distributions that a module is from; none where pip has not installed it."""
    if project_folders([find_spec(module)]):  # to look through all that is installed takes a tenth of a second
        return frozenset()
    owners = packages_distributions()
    return frozenset(name for name, names in owners.items() if not {*names}.isdisjoint(owners.get(module, ())))


@cache
def content_hash(packages: tuple[str, ...] = ()) -> str:
    """Returns 16 hex digits over the names and contents of sources()."""
    digest = hashlib.sha256()
    for name, content in sources(packages):
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def _files(folder: Path, name: str) -> Iterator[tuple[str, bytes]]:
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and entry.name != "__pycache__":
            yield from _files(entry, f"{name}/{entry.name}")
        elif entry.is_file():
            yield f"{name}/{entry.name}", entry.read_bytes()
