"""A table's step: how to find and call it, and how to hash it with the code that it reaches.

Staged rows are reused only if this hash is the same.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar, TypeGuard

from lakehouse_assets.environment.machine import LIBRARY, cache_folder, installed_with, project_folders

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakehouse_assets.step.window import Window

ANY_NAME = frozenset({"globals", "locals", "vars", "eval", "exec", "modules", "__globals__", "__dict__"})
"""A statement that has one of these (``sys.modules``) may use any name of its module."""
MODULE_NAME = re.compile(r"(\.*[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?::.*)?")
"""A text that may name a module to import: ``module``, ``.module`` or ``module:name``."""
SOURCELESS = ("built-in", "frozen")
"""The origins of Python's own modules without a source file, such as ``os``."""
PLAIN_TARGETS = (ast.Name, ast.Tuple, ast.List, ast.Starred, ast.Store)
"""Targets that only bind names, and the Store that ast.walk() yields for each; to assign an attribute or an item may
have any effect."""


def reached_code(reference: str, imported: dict[str, str] | None = None) -> str:
    """Returns the source of all that a function, ``module:function``, or a ``module`` reaches in this project.

    Of its own module: the function, what it names, what that names in turn, and what may have an effect at import
    (calls, compound statements, classes, decorated functions, unused imports). Of project modules that these import:
    all, with all their imports. Of modules that only other statements import: what may have an effect at import.

    The project is ``lakehouse_assets``, the function's top-level package and what lies in the same folders; if pip has
    installed that package, what its distribution installs. Left out: docstrings, comments on their own lines, imports
    for type checkers, other installed packages, modules imported by a computed name or named only in ``__all__``, files
    that are not Python, and side effects of assignments.

    imported: module → source, used in place of the file; modules that Python has imported are added. So a process for
    several runs hashes the code that it has, even if files change.

    Raises ImportError if there is no such module or function, SyntaxError if a module can't be parsed.
    """
    return _Reach(reference, {} if imported is None else imported).text()


def reached_packages(reference: str) -> set[str]:
    """Returns the top-level packages and modules that reached_code() reads. Raises as it does."""
    reach = _Reach(reference, {})
    reach.text()
    return {module.partition(".")[0] for module in reach.modules}


def function_doc(reference: str) -> str:
    """Returns a function's docstring without an import; empty if it has none. Raises SyntaxError."""
    module, _, name = reference.partition(":")
    reach = _Reach(reference, {})
    reach.load(module)
    return next((statement.doc for statement in reach.modules.get(module, ()) if name in statement.binds), "")


class _Reach:
    """A walk from a function over names and imports."""

    def __init__(self, reference: str, imported: dict[str, str]) -> None:
        self.root, _, self.function = reference.partition(":")
        self.imported = imported
        # Module → where it is; None if it is not in this project.
        self.specs = {package: _top_level(package) for package in (self.root.partition(".")[0], LIBRARY)}
        self.folders = project_folders(self.specs.values())
        # Module → its statements, once load() has read it.
        self.modules: dict[str, tuple[_Statement, ...]] = {}
        self.taken: dict[str, set[int]] = {}  # the ordinals of the statements that count, by module
        self.whole: set[str] = set()  # modules whose statements all count
        self.pending: list[tuple[str, str]] = [
            (self.root, self.function or "*")
        ]  # names to follow; "*" for all of a module

    def text(self) -> str:
        if not self.load(self.root):
            raise ImportError(f"there is no module {self.root} with source code")
        functions = {name for statement in self.modules[self.root] if statement.is_function for name in statement.binds}
        if self.function and self.function not in functions:
            raise ImportError(f"{self.root} has no function {self.function!r}; it has {sorted(functions)}")
        while self.pending:
            self._follow(*self.pending.pop())
        texts = []
        for module, taken in sorted(self.taken.items()):
            if taken:  # the other modules have no effect, whatever imports them
                texts += [f"# {module}", *(self.modules[module][ordinal].text for ordinal in sorted(taken))]
        return "\n".join(texts)

    def load(self, name: str) -> bool:
        """Takes what runs at a module's import; returns False if it is not in this project."""
        if name in self.modules:
            return True
        if (spec := self._spec(name)) is None:
            return False
        text = self.imported[name] if name in self.imported else _source(spec)
        # The process keeps this code, even if the file changes later.
        if name in sys.modules:
            self.imported[name] = text
        if name == LIBRARY:
            text = _lazy_imports(text)
        parent = name.rpartition(".")[0]
        package = parent if spec.submodule_search_locations is None else name
        self.modules[name], self.taken[name] = _statements(text, name, package), set()
        if parent:
            self.load(parent)
        used = {used for statement in self.modules[name] for used in statement.uses}
        for ordinal, statement in enumerate(self.modules[name]):
            if statement.runs:
                self._take(name, ordinal)
            # An import that nothing in the function's module uses is there for its effects: its module counts.
            elif statement.is_import and name == self.root and used.isdisjoint(statement.binds):
                self.pending += self._modules(statement)
            # Of other imported modules, only what runs at their import, until something uses their names. Not of the
            # library's __init__.py, which imports a name only when it is used.
            elif statement.is_import and name != LIBRARY:
                for module, _ in self._modules(statement):
                    self.load(module)
        return True

    def _spec(self, name: str) -> ModuleSpec | None:
        """Finds a project module without importing its packages."""
        if name not in self.specs:
            folders: Sequence[str] = self.folders
            if parent := name.rpartition(".")[0]:
                package = self._spec(parent)
                folders = (package and package.submodule_search_locations) or []
            found = PathFinder.find_spec(name.rpartition(".")[2], folders)
            # If the function's package is installed, what its distribution installs is the project, too.
            if found is None and not parent and name in installed_with(self.root.partition(".")[0]):
                found = _top_level(name)
            self.specs[name] = found
        return self.specs[name]

    def _follow(self, module: str, name: str) -> None:
        """Takes the statements of a module that bind the name; all for "*"."""
        if module in self.whole or not self.load(module):
            return
        if name == "*":
            self.whole.add(module)
        for ordinal, statement in enumerate(self.modules[module]):
            if name == "*" or not statement.binds.isdisjoint((name, "*")):
                self._take(module, ordinal)

    def _take(self, module: str, ordinal: int) -> None:
        """Counts a statement, and plans to follow what it uses and imports."""
        if ordinal not in self.taken[module]:
            self.taken[module].add(ordinal)
            statement = self.modules[module][ordinal]
            self.pending += [(module, "*" if name in ANY_NAME else name) for name in statement.uses]
            self.pending += self._modules(statement)

    def _modules(self, statement: _Statement) -> Iterator[tuple[str, str]]:
        """Yields pairs of a module and a name in it; "*" for all of the module."""
        for module, name in statement.imports:
            # `from package import module`: the module as a whole, and whatever the package itself binds to that name.
            if is_module := name != "*" and self._spec(f"{module}.{name}") is not None:
                yield f"{module}.{name}", "*"
            yield module, name if is_module or module == LIBRARY else "*"


@dataclass(frozen=True)
class _Statement:
    """A statement at a module's top level; of an import, one name."""

    text: str
    """Without docstrings, lines of comments, and empty lines."""
    binds: frozenset[str]
    """Names that it assigns; "*" of an import for any."""
    imports: Sequence[tuple[str, str]]
    """What it imports, whenever it runs: modules, each with a name in it, "*" for all."""
    uses: Set[str] = frozenset()
    """Names that occur in it, and attributes of ANY_NAME."""
    runs: bool = False
    """Whether it may have an effect at import."""
    is_import: bool = False
    is_function: bool = False
    doc: str = ""

    @classmethod
    def of(cls, found: dict[str, Any]) -> _Statement:
        """Returns a statement from its JSON data. Raises LookupError or TypeError for other data."""
        imports = [(module, name) for module, name in found.pop("imports")]
        return cls(binds=frozenset(found.pop("binds")), imports=imports, uses={*found.pop("uses")}, **found)


@lru_cache(maxsize=512)
def _statements(source: str, name: str, package: str) -> tuple[_Statement, ...]:
    """Returns _parsed(), from LAKEHOUSE_CACHE if any process has parsed the same source."""
    identity = hashlib.sha256(repr((_own_hash(), sys.version_info[:2], source, name, package)).encode()).hexdigest()
    file = cache_folder() / "code" / identity
    with suppress(OSError, AttributeError, LookupError, TypeError, ValueError):  # not there yet, or damaged
        return tuple(_Statement.of(found) for found in json.loads(file.read_text()))
    statements = _parsed(source, name, package)
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        written = file.with_name(f"{identity}.{os.getpid()}")
        # sorted() makes lists of sets.
        written.write_text(json.dumps([asdict(statement) for statement in statements], default=sorted))
        written.replace(file)
    return statements


@cache
def _own_hash() -> str:
    """Returns the hash of this module, so that what another version of it has parsed is not used."""
    assert __spec__
    return _digest(_source(__spec__))


def _parsed(source: str, name: str, package: str) -> tuple[_Statement, ...]:
    """Returns a module's statements without lone constants and code for type checkers. Raises SyntaxError.

    package: the base of relative imports.
    """
    lines = [f"{line}\n" for line in source.split("\n")]  # as Python counts them: a form feed ends none
    found: list[_Statement] = []
    for node in ast.parse(source, name).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for bound, imports in _imports(node, package):
                found.append(_Statement(f"{bound}: {imports}", frozenset({bound}), imports, is_import=True))
        elif not _is_constant(node) and not _is_for_type_checkers(node):
            found.append(_statement(node, lines, package))
    return tuple(found)


def _statement(node: ast.stmt, lines: list[str], package: str) -> _Statement:
    parts = [*ast.walk(node)]
    names = [part for part in parts if isinstance(part, ast.Name)]
    binds = {name.id for name in names if isinstance(name.ctx, ast.Store)}
    if is_function := isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        # Python itself calls __getattr__() of a module.
        binds, runs = {node.name}, bool(node.decorator_list) or node.name.startswith("__")
    else:
        runs = not _only_assigns(node)
    return _Statement(
        _text(node, parts, lines),
        frozenset(binds),
        [imported for part in parts for imported in _imported_by(part, package)],
        {name.id for name in names} | ({part.attr for part in parts if isinstance(part, ast.Attribute)} & ANY_NAME),
        runs=runs,
        is_function=is_function,
        doc=(ast.get_docstring(node) or "") if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else "",
    )


def _only_assigns(node: ast.stmt) -> bool:
    if not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return all(isinstance(part, PLAIN_TARGETS) for target in targets for part in ast.walk(target))


def _is_constant(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_for_type_checkers(node: ast.stmt) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and not node.orelse and ast.unparse(node.test).rpartition(".")[2] == "TYPE_CHECKING"


def _lazy_imports(text: str) -> str:
    """Returns the imports for type checkers in this library's __init__.py; the rest would change with each new name."""
    statements = ast.parse(text).body
    return "\n".join(ast.unparse(part) for node in statements if _is_for_type_checkers(node) for part in node.body)


def _text(node: ast.stmt, parts: list[ast.AST], lines: list[str]) -> str:
    """Returns a statement's source, the same for each version of Python."""
    # docs: lines of lone constants, which are left out. within: lines inside other texts, which may look like comments.
    first, docs, within = node.lineno, set[int](), set[int]()
    for part in parts:
        if isinstance(part, ast.expr | ast.stmt):
            first, last = min(first, part.lineno), part.end_lineno or part.lineno  # decorators come first
            if _is_constant(part):
                # Lines that hold other code, too, stay. As bytes, because ast counts columns in UTF-8.
                before, behind = lines[part.lineno - 1].encode()[: part.col_offset], lines[last - 1].encode()
                if not (before + behind[part.end_col_offset :]).strip():
                    docs.update(range(part.lineno, last + 1))
            elif isinstance(part, ast.Constant | ast.JoinedStr):
                within.update(range(part.lineno + 1, last + 1))
    return "".join(
        line
        for n, line in enumerate(lines[first - 1 : node.end_lineno], start=first)
        if n not in docs and (n in within or not (line.isspace() or line.lstrip().startswith("#")))
    )


def _imports(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            module = _resolved(f"{'.' * node.level}{node.module or ''}", package)
            yield alias.asname or alias.name, [(module, alias.name)]
        elif alias.asname:
            yield alias.asname, [(alias.name, "*")]
        else:  # it binds the first package, through which the others are reached
            packages = [*accumulate(alias.name.split("."), "{}.{}".format)]
            yield packages[0], [(package, "*") for package in packages]


def _imported_by(part: ast.AST, package: str) -> Iterator[tuple[str, str]]:
    """Yields what part of a statement imports, and modules that a call may import by a constant name."""
    if isinstance(part, ast.Import | ast.ImportFrom):
        for _, imports in _imports(part, package):
            yield from imports
    elif isinstance(part, ast.Call):
        for argument in (*part.args, *(keyword.value for keyword in part.keywords)):
            text = argument.value if isinstance(argument, ast.Constant) else None
            if isinstance(text, str) and (name := MODULE_NAME.fullmatch(text)):
                yield _resolved(name[1], package), "*"


def _resolved(name: str, package: str) -> str:
    """Returns a module's full name; a relative one that leads out of its package stays as it is."""
    with suppress(ImportError):
        return importlib.util.resolve_name(name, package)
    return name


def _top_level(name: str) -> ModuleSpec | None:
    with suppress(ImportError, ValueError):  # a finder that refuses it, a module without a spec
        spec = importlib.util.find_spec(name)  # not PathFinder's: editable installs have finders of their own
        return None if spec and spec.origin in SOURCELESS else spec
    return None


def _source(spec: ModuleSpec) -> str:
    """Returns a module's source: of a compiled one, a call with its hash, as a call counts wherever it is."""
    loader: Any = spec.loader  # of a file or of a zip
    source: str | None = loader.get_source(spec.name) if loader else ""
    return source if source is not None else f"{hashlib.sha256(loader.get_data(spec.origin)).hexdigest()!r}.strip()"


FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""``module:function``; a check of another form is SQL."""
SQL_FILE = re.compile(r"[A-Za-z_][\w.]*:.+\.sql")
"""``module:path.sql``, a file below the module's folder."""
WORKER = "lakehouse_assets.worker.__main__:main"


@dataclass(frozen=True)
class Step(ABC):
    """Something that computes a table's rows, and knows the code that decides them."""

    reference: str
    """The text by which tables declare it."""
    runner: ClassVar[str] = ""
    """The module that runs it beside Spark, if it does not run itself; hashed as the worker's own code is."""

    @abstractmethod
    def load(self) -> Callable[[SparkSession, Window], DataFrame]:
        """Returns the function that computes a window's rows; only workers call this."""

    @abstractmethod
    def source(self, imported: dict[str, str] | None = None) -> str:
        """Returns the text of all that decides which rows it computes. If the text changes, staged rows are not reused.

        Raises ImportError, OSError, SyntaxError or ValueError if it can't be read.
        """

    def packages(self) -> set[str]:
        """Returns the top-level packages that a worker needs for it, besides this library."""
        return set()

    def description(self) -> str:
        """Returns its description for the UI, or an empty text."""
        return ""

    def reads(self) -> Sequence[str]:
        """Returns the tables of the lake that its text names, as Table.reads does; a table need not declare these."""
        return ()


class PythonStep(Step):
    """A function of the project, called as ``function(spark, window)``."""

    def load(self) -> Callable[[SparkSession, Window], DataFrame]:
        """Imports the function."""
        module, _, function = self.reference.partition(":")
        step: Callable[[SparkSession, Window], DataFrame] = getattr(import_module(module), function)
        return step

    def source(self, imported: dict[str, str] | None = None) -> str:
        """Returns reached_code()."""
        return reached_code(self.reference, imported)

    def packages(self) -> set[str]:
        """Returns reached_packages()."""
        return reached_packages(self.reference)

    def description(self) -> str:
        """Returns the function's docstring."""
        return function_doc(self.reference)


KINDS: Mapping[re.Pattern[str], str] = {
    FUNCTION: "lakehouse_assets.wire.code:PythonStep",
    SQL_FILE: "lakehouse_assets.extensions.sql.sql_step:SqlStep",
}
"""The form of a kind's references → its class, imported when a table has such a step."""


def step_of(reference: str) -> Step:
    """Returns the step that a table declares. Raises ValueError for a text that names none."""
    for form, kind in KINDS.items():
        if form.fullmatch(reference):
            module, _, name = kind.partition(":")
            step: Step = getattr(import_module(module), name)(reference)
            return step
    raise ValueError(f"the step {reference!r} is neither module:function nor a file that ends in .sql")


def declared_code(step: str, checks: Iterable[str] = (), imported: dict[str, str] | None = None) -> str:
    """Returns 16 hex digits over the source of a step and of the checks that are functions.

    Raises ValueError for a text that names no step, ImportError for code that can't be read.
    """
    texts = []
    for declared in _steps(step, checks):
        try:
            texts.append(declared.source(imported))
        except (ImportError, OSError, SyntaxError, ValueError) as error:
            raise ImportError(f"the code of {declared.reference} can't be read: {error}") from error
    return _digest(*texts)


def code_packages(step: str, checks: Iterable[str] = (), hooks: Iterable[str] = ()) -> tuple[str, ...]:
    """Returns the top-level packages that a table's worker needs besides this library, sorted.

    hooks: of extensions, ``module:class``.
    """
    of_step = (declared.packages() for declared in _steps(step, checks))
    of_hooks = (reached_packages(hook.partition(":")[0]) for hook in hooks)
    return tuple(sorted(set[str]().union(*of_step, *of_hooks)))


def _steps(step: str, checks: Iterable[str]) -> list[Step]:
    return [step_of(step), *(PythonStep(check) for check in sorted(checks) if FUNCTION.fullmatch(check))]


def worker_code(
    step: str, checks: Iterable[str] = (), imported: dict[str, str] | None = None, hooks: Iterable[str] = ()
) -> str:
    """Returns a hash of declared_code() and of the worker's code around it: both decide what is staged.

    hooks: of extensions, ``module:class``; the worker imports them by name.
    """
    runner = step_of(step).runner
    around = (WORKER, *([runner] if runner else []), *(hook.partition(":")[0] for hook in sorted(hooks)))
    return _digest(declared_code(step, checks, imported), *(reached_code(one, imported) for one in around))


def _digest(*texts: str) -> str:
    return hashlib.sha256(repr(texts).encode()).hexdigest()[:16]
