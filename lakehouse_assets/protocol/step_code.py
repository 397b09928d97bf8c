"""The code that a step runs, as a hash: what of this project its import and its call reach, read and never run.
No Dagster and no Spark: the run that asks and the worker that answers compute the same. What else counts is plan's."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.machinery import ModuleSpec

from resources.package import PACKAGES, ROOT

WORKER = "lakehouse_assets.worker.perform:stage_chunk"
INSTALLED = ("site-packages", "dist-packages")
# Who uses one of these may use any name of its module.
ANY_NAME = frozenset({"globals", "locals", "vars", "eval", "exec"})
ANY_ATTRIBUTE = frozenset({*ANY_NAME, "modules", "__globals__", "__dict__"})
# Decorators and bases out of these register nothing that a step could reach without naming it.
HARMLESS = frozenset({*sys.stdlib_module_names, "pyspark"})
MODULE_NAME = re.compile(r"(\.*[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?::.*)?")


def code_hash(*roots: str, imported: dict[str, str] | None = None) -> str:
    """16 hex digits over the source of everything that the functions ``module:function`` reach in this project.

    Names are followed from statement to statement and from module to module, so that an unused neighbour in the same
    file changes nothing. What runs at import counts always: statements that bind no name, compound statements, classes
    whose bodies do more than define, and definitions whose decorators or bases are neither Python's nor Spark's (they
    may register themselves). A module that is used as a whole (``import helpers``) counts as a whole, with what is
    looked up below it, as does one that uses ``globals``, ``vars``, ``eval``, ``exec`` or ``sys.modules``, and one
    whose name is an argument of a call.

    Of this project are ``lakehouse_assets``, ``resources``, each root's top-level package, and what lies in the same
    folders. Not covered: installed packages, modules imported by a computed name, files that are no Python, and what
    an assignment, a default or a decorator of Python's own does beside giving a value.

    imported: sources by module, which count in place of the files; modules that this process has imported since are
    added. By it a process that lives on knows what it really runs.

    Raises ImportError where a root's module can't be found, SyntaxError where a module can't be parsed.
    """
    return _Reach(roots, {} if imported is None else imported, remember=imported is not None).digest()


def worker_code(step: str, imported: dict[str, str] | None = None) -> str:
    """code_hash() of the step and of what a worker runs around it: both decide what is staged."""
    return code_hash(step, WORKER, imported=imported)


def find(name: str) -> ModuleSpec | None:
    """The module's spec, found without importing its packages; None where there is none."""
    top, *parts = name.split(".")
    try:
        spec = importlib.util.find_spec(top)  # asks editable installs' finders too; only packages above are imported
    except (ImportError, ValueError):  # a finder that refuses it, a module made by hand
        return None
    for part in parts:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = _child(f"{spec.name}.{part}", spec.submodule_search_locations)
    return spec


def _child(name: str, folders: Iterable[str]) -> ModuleSpec | None:
    """As importlib's PathFinder, which looks for the packages above in sys.modules, where they are not."""
    portions: list[str] = []
    for folder in folders:
        found = (importer := pkgutil.get_importer(folder)) and importer.find_spec(name)
        if found and found.loader:
            return found
        portions += (found and found.submodule_search_locations) or []
    namespace = ModuleSpec(name, None, is_package=True)
    namespace.submodule_search_locations = portions
    return namespace if portions else None


def read(name: str) -> str:
    """A module's source. Raises ImportError where there is none."""
    spec = find(name)
    source = spec and spec.loader and spec.loader.get_source(name)  # type: ignore[attr-defined]
    if source is None:
        raise ImportError(f"no module {name} with a source")
    return source


@dataclass(frozen=True)
class _Import:
    """One imported thing. alias: the name it is bound to. name: what is taken out of the module; None: the module."""

    alias: str
    module: str
    name: str | None


@dataclass(frozen=True)
class _Statement:
    """A statement at a module's top level. attributes: the names that it looks up in anything. runs: whether it counts
    as soon as its module is imported."""

    text: str
    binds: frozenset[str]
    uses: frozenset[str]
    attributes: frozenset[str]
    imports: tuple[_Import, ...]
    runs: bool
    is_import: bool
    registers: frozenset[str]


@dataclass
class _Reach:
    """A walk from the roots over names. taken: by module, the number and the text of all that counts."""

    roots: tuple[str, ...]
    imported: dict[str, str]
    remember: bool
    taken: dict[str, set[tuple[int, str]]] = field(default_factory=dict)
    modules: dict[str, tuple[_Statement, ...]] = field(default_factory=dict)
    folders: set[str] = field(default_factory=lambda: {os.path.realpath(ROOT)})
    own: dict[str, bool] = field(default_factory=lambda: dict.fromkeys(PACKAGES, True))
    pending: list[tuple[str, str]] = field(default_factory=list)
    whole: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)

    def digest(self) -> str:
        for root in self.roots:
            top = root.partition(":")[0].partition(".")[0]
            if (spec := find(top)) and (folder := _folder(spec)):
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
            digest.update(f"# {module}\n".encode())
            for _, text in sorted(texts):
                digest.update(f"{text}\n".encode())
        return digest.hexdigest()[:16]

    def _load(self, name: str) -> bool:
        """Take what runs when the module is imported; False where there is none, or it is not this project's."""
        if name in self.modules:
            return True
        if not self._is_own(name.partition(".")[0]) or (spec := find(name)) is None:
            return False
        parent = name.rpartition(".")[0]
        package = name if spec.submodule_search_locations is not None else parent
        text = self.imported[name] if name in self.imported else _text(spec, name)
        if self.remember and name in sys.modules:
            self.imported[name] = text
        self.modules[name], self.taken[name] = _statements(text, name, package), set()
        if parent:
            self._load(parent)
        for number, statement in enumerate(self.modules[name]):
            if statement.is_import:
                for imported in statement.imports:
                    self._import(imported)
            elif statement.runs or any(self._may_register(name, used) for used in statement.registers):
                self._take(name, number)
        return True

    def _import(self, imported: _Import) -> None:
        if not self._load(imported.module):
            return
        if imported.name == "*":
            self._all(imported.module)
            for below in _submodules(imported.module):  # __all__ may name them
                self._all(below)
        elif imported.name:
            self._load(f"{imported.module}.{imported.name}")

    def _is_own(self, top: str) -> bool:
        if top not in self.own:
            folder = (spec := find(top)) and _folder(spec)
            self.own[top] = folder in self.folders and os.path.basename(folder or "") not in INSTALLED
        return self.own[top]

    def _may_register(self, module: str, name: str) -> bool:
        """Whether a decorator or a base may keep what it is given: not if it is a builtin, Python's own or Spark's."""
        imports = [i for s in self.modules[module] if name in s.binds or "*" in s.binds for i in s.imports]
        sources = {i.module.partition(".")[0] for i in imports if i.alias in (name, "*")}
        defined = any(name in s.binds and not s.is_import for s in self.modules[module])
        return defined or bool(sources - HARMLESS)

    def _take(self, module: str, number: int) -> None:
        """Take a statement, and all that it names."""
        statement = self.modules[module][number]
        if statement.is_import:
            for imported in statement.imports:
                self._used(module, number, imported)
        elif (number, statement.text) not in self.taken[module]:
            self.taken[module].add((number, statement.text))
            self.attributes |= statement.attributes
            for imported in statement.imports:
                self._used(module, number, imported)
            if statement.uses & ANY_NAME:
                self._all(module)
            self.pending += [(module, name) for name in statement.uses]

    def _name(self, module: str, name: str) -> None:
        """Take whatever binds the name in the module."""
        statements = self.modules[module]
        if any("__getattr__" in s.binds for s in statements):
            self._all(module)
        for number, statement in enumerate(statements):
            if name not in statement.binds:
                continue
            if not statement.is_import:
                self._take(module, number)  # with whatever it imports
                continue
            for imported in statement.imports:
                if imported.alias == name:
                    self._used(module, number, imported)

    def _used(self, module: str, number: int, imported: _Import) -> None:
        """Take what was imported. Of the import itself only this name counts: others on its line are others'."""
        told = (number, f"from {imported.module} import {imported.name} as {imported.alias}")
        if told in self.taken[module]:
            return
        self.taken[module].add(told)
        if not self._load(imported.module):
            return
        if imported.name is None or imported.name == "*":
            self._all(imported.module)
        else:  # a submodule, or a name, or both: which of them it is depends on what was imported before
            self._all(f"{imported.module}.{imported.name}")
            self.pending.append((imported.module, imported.name))

    def _take_below(self) -> bool:
        """Take the modules below those that count as a whole: once imported, by whomever, they are their attributes."""
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


def _folder(spec: ModuleSpec) -> str | None:
    """The folder, or the zip, in which a top-level module lies; None for one that lies in Python itself."""
    place = next(iter(spec.submodule_search_locations or ()), None) or (spec.origin if spec.has_location else None)
    return os.path.realpath(os.path.dirname(place)) if place else None


def _submodules(package: str) -> Iterator[str]:
    spec = find(package)
    for module in pkgutil.iter_modules((spec and spec.submodule_search_locations) or []):
        yield f"{package}.{module.name}"


def _text(spec: ModuleSpec, name: str) -> str:
    """A module's source; of one that has none (compiled, or a namespace) its bytes as a comment."""
    loader = spec.loader
    if (source := loader and loader.get_source(name)) is not None:  # type: ignore[attr-defined]
        return source
    if spec.has_location and spec.origin and loader:
        return f"{hashlib.sha256(loader.get_data(spec.origin)).hexdigest()!r}.strip()"  # type: ignore[attr-defined]
    return ""


@lru_cache(maxsize=512)
def _statements(source: str, name: str, package: str) -> tuple[_Statement, ...]:
    lines = [f"{line}\n" for line in source.split("\n")]  # as Python counts them: a form feed ends none
    return tuple(_statement(node, lines, package) for node in ast.parse(source, name).body if not _is_text(node))


def _is_text(node: ast.stmt) -> bool:
    """Whether it is a docstring, or an ellipsis."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _statement(node: ast.stmt, lines: list[str], package: str) -> _Statement:
    definition = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    decorators = node.decorator_list if definition else []
    bases = [*node.bases, *(k.value for k in node.keywords)] if isinstance(node, ast.ClassDef) else []
    if isinstance(node, ast.ClassDef):
        decorators = [d for part in ast.walk(node) for d in getattr(part, "decorator_list", [])]
    first = min([node.lineno, *(d.lineno for d in decorators)])
    is_import = isinstance(node, ast.Import | ast.ImportFrom)
    return _Statement(
        text="".join(lines[first - 1 : node.end_lineno]),
        binds=frozenset({node.name} if definition else _bound(node, package)),
        uses=frozenset(_used(node)),
        attributes=frozenset(_attributes(node)),
        imports=tuple(_imports(node, package)),
        runs=not (is_import or _only_binds(node)),
        is_import=is_import,
        registers=frozenset(n.id for part in (*decorators, *bases) for n in ast.walk(part) if isinstance(n, ast.Name)),
    )


def _used(node: ast.stmt) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute) and part.attr in ANY_ATTRIBUTE:
            yield "globals"


def _attributes(node: ast.stmt) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute):
            yield part.attr
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):  # of getattr
            yield part.value


def _only_binds(node: ast.stmt) -> bool:
    """Whether a statement defines or assigns names, and is otherwise without effect as far as can be seen."""
    if isinstance(node, ast.ClassDef):
        return all(isinstance(part, ast.Pass) or _is_text(part) or _only_binds(part) for part in node.body)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return True
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    plain = (ast.Name, ast.Tuple, ast.List, ast.Starred, ast.Store)
    return isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and all(
        isinstance(part, plain) for target in targets if target for part in ast.walk(target)
    )


def _bound(node: ast.stmt, package: str) -> Iterator[str]:
    """The names that a statement binds, in whatever part of it."""
    yield from (imported.alias for imported in _imports(node, package))
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            yield part.id
        elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield part.name


def _imports(node: ast.stmt, package: str) -> Iterator[_Import]:
    for part in ast.walk(node):
        if isinstance(part, ast.Import):
            for alias in part.names:
                top, *parts = alias.name.split(".")
                yield _Import(alias.asname or top, alias.name, None)
                if not alias.asname:  # what it binds is the first package, through which all are reached
                    for depth in range(len(parts)):
                        yield _Import(top, ".".join([top, *parts[:depth]]), None)
        elif isinstance(part, ast.ImportFrom):
            module = _absolute(part, package)
            for alias in part.names:
                yield _Import(alias.asname or alias.name, module, alias.name)
        elif isinstance(part, ast.Call):
            yield from (_Import("", name, None) for name in _imported_by_call(part, package))


def _absolute(node: ast.ImportFrom, package: str) -> str:
    return _resolved(f"{'.' * node.level}{node.module or ''}", package)


def _resolved(name: str, package: str) -> str:
    """A module's name without the dots that lead it."""
    level = len(name) - len(name.lstrip("."))
    if not level:
        return name
    above = package.split(".")
    parts = above[: len(above) - level + 1]
    return ".".join([*parts, name[level:]] if name[level:] else parts)


def _imported_by_call(call: ast.Call, package: str) -> Iterator[str]:
    """The modules that a call may load by a constant name: whatever the function is called here."""
    for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
        text = argument.value if isinstance(argument, ast.Constant) else None
        if isinstance(text, str) and (name := MODULE_NAME.fullmatch(text)):
            yield _resolved(name[1], package)
