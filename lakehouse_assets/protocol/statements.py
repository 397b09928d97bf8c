"""The top-level statements of a module: what each binds, uses and imports, and whether it runs at the module's import.

They are parsed, never run. Which of them a step reaches is found in step_code.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

# Code that uses one of these may use any name of its module.
ANY_NAME = frozenset({"globals", "locals", "vars", "eval", "exec"})
ANY_ATTRIBUTE = frozenset({*ANY_NAME, "modules", "__globals__", "__dict__"})
FOR_TYPES = "TYPE_CHECKING"
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
MODULE_NAME = re.compile(r"(\.*[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?::.*)?")


@dataclass(frozen=True)
class Import:
    """One imported thing."""

    alias: str
    """The name that it is bound to; "" for one imported by a call."""
    module: str
    name: str | None
    """What is taken out of the module; None: the module itself."""


@dataclass(frozen=True)
class Statement:
    """A statement at a module's top level."""

    text: str
    binds: frozenset[str]
    uses: frozenset[str]
    attributes: frozenset[str]
    """Names that it looks up in any object."""
    imports: tuple[Import, ...]
    runs: bool
    """Whether it has an effect when its module is imported."""
    is_import: bool
    registers: frozenset[str]
    """Names of its decorators and bases, which may keep what they are given."""


@lru_cache(maxsize=512)
def statements(source: str, name: str, package: str) -> tuple[Statement, ...]:
    """Returns the statements of a module's source, without what changes nothing that runs.

    That is docstrings, comments on lines of their own, and what only type checkers read.

    name: for errors. package: what relative imports begin from. Raises SyntaxError.
    """
    lines = [f"{line}\n" for line in source.split("\n")]  # as Python counts them: a form feed ends none
    body = ast.parse(source, name).body
    running = (node for node in body if not (_is_text(node) or _is_for_type_checkers(node, body)))
    return tuple(_statement(node, lines, package) for node in running)


def _is_text(node: ast.stmt) -> bool:
    """Tells whether a statement is a docstring, an ellipsis or another lone constant."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_for_type_checkers(node: ast.stmt, body: list[ast.stmt]) -> bool:
    """Tells whether a statement is an ``if TYPE_CHECKING:`` without an else, by typing's name."""
    if not isinstance(node, ast.If) or node.orelse or not isinstance(node.test, ast.Name) or node.test.id != FOR_TYPES:
        return False
    imports = (other for other in body if isinstance(other, ast.ImportFrom) and other.module == "typing")
    return any(alias.name == FOR_TYPES for other in imports for alias in other.names)


def _text(node: ast.stmt, first: int, lines: list[str]) -> str:
    """Cuts a statement out of its module, without docstrings, comments and empty lines that have lines of their own.

    first: the number of its first line. lines: of the module.
    """
    docs: set[int] = set()
    within: set[int] = set()  # lines that begin within text
    for part in ast.walk(node):
        if isinstance(part, DEFINITIONS):
            docs.update(*(_own_lines(part.body, at, lines) for at, of in enumerate(part.body) if _is_text(of)))
        elif isinstance(part, ast.Constant | ast.JoinedStr):
            within.update(range(part.lineno + 1, (part.end_lineno or part.lineno) + 1))
    numbered = enumerate(lines[first - 1 : node.end_lineno], start=first)
    return "".join(
        line
        for n, line in numbered
        if n in within - docs or not (n in docs or line.isspace() or line.lstrip().startswith("#"))
    )


def _own_lines(body: list[ast.stmt], at: int, lines: list[str]) -> range:
    """Returns the lines of the docstring, of the body or of a field, at this place; none if there is code on them."""
    doc, last = body[at], body[at].end_lineno or body[at].lineno
    is_first = not lines[doc.lineno - 1].encode()[: doc.col_offset].strip()
    is_last = len(body) == at + 1 or body[at + 1].lineno > last
    return range(doc.lineno, last + 1) if is_first and is_last else range(0)


def _statement(node: ast.stmt, lines: list[str], package: str) -> Statement:
    definition = node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else None
    decorators = definition.decorator_list if definition else []
    bases: list[ast.expr] = []
    if isinstance(node, ast.ClassDef):
        decorators = [d for part in ast.walk(node) for d in getattr(part, "decorator_list", [])]
        bases = [*node.bases, *(k.value for k in node.keywords)]
    first = min([node.lineno, *(d.lineno for d in decorators)])
    is_import = isinstance(node, ast.Import | ast.ImportFrom)
    return Statement(
        text=_text(node, first, lines),
        binds=frozenset({definition.name} if definition else _bound(node, package)),
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
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):  # getattr's argument
            yield part.value


def _only_binds(node: ast.stmt) -> bool:
    """Tells whether a statement only defines or assigns names, as far as can be seen."""
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
    """Yields the names that a statement binds, in any of its parts."""
    yield from (imported.alias for imported in _imports(node, package))
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            yield part.id
        elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield part.name


def _imports(node: ast.stmt, package: str) -> Iterator[Import]:
    for part in ast.walk(node):
        if isinstance(part, ast.Import):
            for alias in part.names:
                top, *parts = alias.name.split(".")
                yield Import(alias.asname or top, alias.name, None)
                if not alias.asname:  # it binds the first package, through which the others are reached
                    for depth in range(len(parts)):
                        yield Import(top, ".".join([top, *parts[:depth]]), None)
        elif isinstance(part, ast.ImportFrom):
            module = _resolved(f"{'.' * part.level}{part.module or ''}", package)
            for alias in part.names:
                yield Import(alias.asname or alias.name, module, alias.name)
        elif isinstance(part, ast.Call):
            yield from (Import("", name, None) for name in _imported_by_call(part, package))


def _resolved(name: str, package: str) -> str:
    """Returns a module's full name: a relative one, which begins with dots, is resolved from the package."""
    level = len(name) - len(name.lstrip("."))
    if not level:
        return name
    above = package.split(".")
    parts = above[: len(above) - level + 1]
    return ".".join([*parts, name[level:]] if name[level:] else parts)


def _imported_by_call(call: ast.Call, package: str) -> Iterator[str]:
    """Yields the modules that a call of any function may import by a constant name."""
    for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
        text = argument.value if isinstance(argument, ast.Constant) else None
        if isinstance(text, str) and (name := MODULE_NAME.fullmatch(text)):
            yield _resolved(name[1], package)
