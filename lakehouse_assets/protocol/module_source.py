"""Finds and reads modules as files, without importing them or their packages.

What their text means is found in statements.py.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pkgutil
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec
from typing import Protocol, cast


class _Loader(Protocol):
    """The protocol that Python's loaders of files and of zips share; importlib has no name for it."""

    def get_source(self, fullname: str) -> str | None: ...
    def get_data(self, path: str) -> bytes: ...


def find_module(name: str) -> ModuleSpec | None:
    """Returns the module's spec, found without importing its packages; None where there is none."""
    top, *parts = name.split(".")
    try:
        spec = importlib.util.find_spec(top)  # not PathFinder's: editable installs have finders of their own
    except (ImportError, ValueError):  # a finder that refuses it, a module without a spec
        return None
    for part in parts:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = _child(f"{spec.name}.{part}", spec.submodule_search_locations)
    return spec


def _child(name: str, folders: Iterable[str]) -> ModuleSpec | None:
    """Finds a module in its package's folders as importlib's PathFinder does.

    PathFinder itself needs the parent package in sys.modules.
    """
    portions: list[str] = []
    for folder in folders:
        found = (importer := pkgutil.get_importer(folder)) and importer.find_spec(name)
        if found and found.loader:
            return found
        portions += (found and found.submodule_search_locations) or []
    namespace = ModuleSpec(name, None, is_package=True)
    namespace.submodule_search_locations = portions
    return namespace if portions else None


def read_module(name: str) -> str:
    """Returns a module's source, by its full name. Raises ImportError where there is none."""
    spec = find_module(name)
    source = cast("_Loader", spec.loader).get_source(name) if spec and spec.loader else None
    if source is None:
        raise ImportError(f"no module {name} with a source")
    return source


def source_of(spec: ModuleSpec) -> str:
    """Returns a module's source; for a compiled module a statement with its hash, for a namespace package ""."""
    if spec.loader is None:
        return ""
    loader = cast("_Loader", spec.loader)
    if (source := loader.get_source(spec.name)) is not None:
        return source
    if spec.has_location and spec.origin:
        return f"{hashlib.sha256(loader.get_data(spec.origin)).hexdigest()!r}.strip()"
    return ""


def folder_of(spec: ModuleSpec) -> str | None:
    """Returns the folder or zip of a top-level module; None for one in Python itself."""
    place = next(iter(spec.submodule_search_locations or ()), None) or (spec.origin if spec.has_location else None)
    return os.path.realpath(os.path.dirname(place)) if place else None


def submodules(package: str) -> Iterator[str]:
    """Yields the full names of the modules right below a package."""
    spec = find_module(package)
    for module in pkgutil.iter_modules((spec and spec.submodule_search_locations) or []):
        yield f"{package}.{module.name}"
