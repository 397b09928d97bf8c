"""Hashes the code that a step runs: what its import and its call reach in this project, read and never run.

No Dagster and no Spark: the run and its workers compute the same. What else decides the rows is in Assignment.work.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

from lakehouse_assets.protocol.module_source import find_module, folder_of, source_of, submodules
from lakehouse_assets.protocol.statements import ANY_NAME, Import, Statement, statements
from resources.package import PACKAGES, ROOT

WORKER = "lakehouse_assets.worker.__main__:main"
FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""``module:function``; a check that is no such thing is SQL."""
INSTALLED = ("site-packages", "dist-packages")
# Decorators and bases out of these register nothing that a step could reach without naming it.
HARMLESS = frozenset({*sys.stdlib_module_names, "pyspark"})


def code_hash(*roots: str, imported: dict[str, str] | None = None) -> str:
    """Returns 16 hex digits over the source of all that the functions ``module:function`` reach in this project.

    Names are followed from statement to statement and from module to module, so that an unused neighbour in the same
    file changes nothing. What runs at import always counts: statements that bind no name, compound statements, classes
    whose bodies do more than define, and definitions whose decorators or bases are neither Python's nor Spark's (they
    may register themselves). A module counts as a whole if it is used as one (``import helpers``), uses ``globals``,
    ``vars``, ``eval``, ``exec`` or ``sys.modules``, or is named in an argument of a call; so does what is looked up
    below it.

    To this project belong ``lakehouse_assets``, ``resources``, each root's top-level package, and what lies in the same
    folders. Not covered: docstrings, comments on lines of their own, installed packages, modules imported by a computed
    name, files that are not Python, and side effects of an assignment, of a default or of a decorator of Python's own.

    imported: sources by module, which count in place of the files; those of modules imported since are added. By it a
    process that works for several runs knows which code it really has.

    Raises ImportError where a root's module can't be found, SyntaxError where a module can't be parsed.
    """
    return _Reach(roots, {} if imported is None else imported).digest()


def declared_code(step: str, checks: Iterable[str]) -> tuple[str, ...]:
    """Returns the functions that a table declares: its step, and those of its checks."""
    return step, *filter(FUNCTION.fullmatch, checks)


def worker_code(step: str, imported: dict[str, str] | None = None, *, checks: Iterable[str] = ()) -> str:
    """Returns code_hash() of what a table declares and of what a worker runs around it: both decide what is staged."""
    return code_hash(*declared_code(step, checks), WORKER, imported=imported)


@dataclass
class _Reach:
    """A walk from the roots over names."""

    roots: tuple[str, ...]
    imported: dict[str, str]
    taken: dict[str, set[tuple[int, str]]] = field(default_factory=dict)
    """By module, number and text of each statement that counts."""
    modules: dict[str, tuple[Statement, ...]] = field(default_factory=dict)
    folders: set[str] = field(default_factory=lambda: {os.path.realpath(ROOT)})
    own: dict[str, bool] = field(default_factory=lambda: dict.fromkeys(PACKAGES, True))
    """Whether a top-level module belongs to this project."""
    pending: list[tuple[str, str]] = field(default_factory=list)
    """Pairs of module and name that are still to be followed."""
    whole: set[str] = field(default_factory=set)
    """Modules that count as a whole."""
    attributes: set[str] = field(default_factory=set)
    """Names that anything taken looks up."""

    def digest(self) -> str:
        for root in self.roots:
            top = root.partition(":")[0].partition(".")[0]
            if (spec := find_module(top)) and (folder := folder_of(spec)):
                self.folders.add(folder)
            self.own[top] = True
        for root in self.roots:
            module, _, function = root.partition(":")
            if not self._load(module):
                raise ImportError(f"no module {module} with a source")
            self.pending.append((module, function))
        while self.pending or self._take_below():
            while self.pending:
                self._name(*self.pending.pop())
        digest = hashlib.sha256()
        for module, texts in sorted(self.taken.items()):
            if texts or module in self.whole:  # others have no effect, wherever they are imported
                digest.update(f"# {module}\n".encode())
            for _, text in sorted(texts):
                digest.update(f"{text}\n".encode())
        return digest.hexdigest()[:16]

    def _load(self, name: str) -> bool:
        """Takes what runs when the module is imported; returns False where there is no module of this project's."""
        if name in self.modules:
            return True
        if not self._is_own(name.partition(".")[0]) or (spec := find_module(name)) is None:
            return False
        parent = name.rpartition(".")[0]
        package = name if spec.submodule_search_locations is not None else parent
        text = self.imported[name] if name in self.imported else source_of(spec)
        if name in sys.modules:
            self.imported[name] = text
        self.modules[name], self.taken[name] = statements(text, name, package), set()
        if parent:
            self._load(parent)
        for number, statement in enumerate(self.modules[name]):
            if statement.is_import:
                for imported in statement.imports:
                    self._import(imported)
            elif statement.runs or any(self._may_register(name, used) for used in statement.registers):
                self._take(name, number)
        return True

    def _import(self, imported: Import) -> None:
        if not self._load(imported.module):
            return
        if imported.name == "*":
            self._all(imported.module)
            for below in submodules(imported.module):  # __all__ may name them
                self._all(below)
        elif imported.name:
            self._load(f"{imported.module}.{imported.name}")

    def _is_own(self, top: str) -> bool:
        if top not in self.own:
            folder = (spec := find_module(top)) and folder_of(spec)
            self.own[top] = folder in self.folders and os.path.basename(folder or "") not in INSTALLED
        return self.own[top]

    def _may_register(self, module: str, name: str) -> bool:
        """Tells whether a decorator or a base may keep what it is given: Python's and Spark's do not."""
        imports = [i for s in self.modules[module] if name in s.binds or "*" in s.binds for i in s.imports]
        sources = {i.module.partition(".")[0] for i in imports if i.alias in (name, "*")}
        defined = any(name in s.binds and not s.is_import for s in self.modules[module])
        return defined or bool(sources - HARMLESS)

    def _take(self, module: str, number: int) -> None:
        """Takes a statement, and everything that it names."""
        statement = self.modules[module][number]
        if not statement.is_import:
            if (number, statement.text) in self.taken[module]:
                return
            self.taken[module].add((number, statement.text))
            self.attributes |= statement.attributes
            if statement.uses & ANY_NAME:
                self._all(module)
            self.pending += [(module, name) for name in statement.uses]
        for imported in statement.imports:
            self._used(module, number, imported)

    def _name(self, module: str, name: str) -> None:
        """Takes all that binds the name in the module."""
        statements = self.modules[module]
        if any("__getattr__" in s.binds for s in statements):
            self._all(module)
        for number, statement in enumerate(statements):
            if name not in statement.binds:
                continue
            if not statement.is_import:
                self._take(module, number)  # with all that it imports
                continue
            for imported in statement.imports:
                if imported.alias == name:
                    self._used(module, number, imported)

    def _used(self, module: str, number: int, imported: Import) -> None:
        """Takes what was imported, without other names in the same import statement."""
        taken = (number, f"from {imported.module} import {imported.name} as {imported.alias}")
        if taken in self.taken[module]:
            return
        self.taken[module].add(taken)
        if not self._load(imported.module):
            return
        if imported.name is None or imported.name == "*":
            self._all(imported.module)
        else:  # a submodule, or a name, or both: which of them it is depends on what was imported before
            self._all(f"{imported.module}.{imported.name}")
            self.pending.append((imported.module, imported.name))

    def _take_below(self) -> bool:
        """Takes the modules below those that count as a whole, if their names are looked up; tells whether it took any.

        Their names are looked up as attributes: an import makes a module its package's attribute.
        """
        named = (m for m in self.modules if m.rpartition(".")[2] in self.attributes and m not in self.whole)
        below = [m for m in named if any(m.startswith(f"{whole}.") for whole in self.whole)]
        for module in below:
            self._all(module)
        return bool(below)

    def _all(self, module: str) -> None:
        if module not in self.whole and self._load(module):
            self.whole.add(module)
            for number in range(len(self.modules[module])):
                self._take(module, number)
