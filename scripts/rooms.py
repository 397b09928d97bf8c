"""Draws the room graph of a checkout: which room imports which, how large each is, and what breaks the rules.
`python -m scripts.rooms [checkout …]`, side by side for several; tests/unit/test_rooms.py holds the rules."""

from __future__ import annotations

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

# From top to bottom. A room imports rooms of lower floors only, none of its own floor.
FLOORS = (
    ("cli",),
    ("definitions",),
    ("domains",),
    ("lakehouse_assets", "testing"),
    ("extensions.yaml",),
    ("build_location",),
    ("rollback", "extensions"),
    (
        *("extensions.queue", "extensions.sources", "extensions.hand_off", "extensions.aws", "extensions.fork_server"),
        "extensions.sql",
    ),
    ("extensions.releases",),
    ("inputs",),
    ("maintenance",),
    ("run",),
    ("drive", "commit", "worker"),
    ("declare",),
    ("files", "wire", "storage"),
    ("step",),
    ("errors", "keys_text", "first_table", "time_text", "type_text"),
    ("environment",),
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
CORE = frozenset(room for rooms in FLOORS[FLOORS.index(("run",)) :] for room in rooms)
"""What each run needs, whatever features a table has. Features plug into it: inputs, maintenance and the extensions."""

Edges = Mapping[str, Iterable[str]]


def room_of(module: str) -> str:
    """A folder or a top-level module of lakehouse_assets; of extensions/, each folder."""
    package, _, rest = module.partition(".")
    room, _, below = rest.partition(".")
    if room == "extensions" and "." in below:
        return f"{room}.{below.partition('.')[0]}"
    return room if package == "lakehouse_assets" and rest else package


@dataclass(frozen=True)
class Import:
    """One module names another."""

    source: str
    target: str
    place: str


@dataclass(frozen=True)
class Checkout:
    """The Python files of the package."""

    root: Path

    @cached_property
    def files(self) -> dict[str, Path]:
        """By module name; a package's is its ``__init__.py``."""
        paths = sorted((self.root / "lakehouse_assets").rglob("*.py"))
        return {self._module(path): path for path in paths}

    def _module(self, path: Path) -> str:
        return ".".join(path.relative_to(self.root).with_suffix("").parts).removesuffix(".__init__")

    @cached_property
    def imports(self) -> list[Import]:
        """Every import of one of these modules by another, those inside functions and under TYPE_CHECKING too."""
        return [found for module, path in self.files.items() for found in self._imports(module, path)]

    def _imports(self, module: str, path: Path) -> Iterator[Import]:
        package = module if path.stem == "__init__" else module.rpartition(".")[0]
        for node in ast.walk(ast.parse(path.read_text())):
            targets = {self._existing(name) for name in _names(node, package)} - {None, module}
            for target in sorted(filter(None, targets)):
                yield Import(module, target, f"{path.relative_to(self.root)}:{getattr(node, 'lineno', 0)}")

    def _existing(self, name: str) -> str | None:
        """The module that a dotted name means: itself, or what it is an attribute of."""
        if name in self.files:
            return name
        parent = name.rpartition(".")[0]
        return parent if parent in self.files else None

    @cached_property
    def files_graph(self) -> dict[str, set[str]]:
        """Which module imports which."""
        graph: dict[str, set[str]] = defaultdict(set)
        for found in self.imports:
            graph[found.source].add(found.target)
        return graph

    @cached_property
    def rooms_graph(self) -> dict[str, Counter[str]]:
        """How often which room imports which other."""
        graph: dict[str, Counter[str]] = defaultdict(Counter)
        for found in self.imports:
            source, target = room_of(found.source), room_of(found.target)
            if source != target:
                graph[source][target] += 1
        return graph

    @cached_property
    def rooms(self) -> list[str]:
        """From the top floor to the bottom; those without a floor come first."""
        rooms = {room_of(module) for module, path in self.files.items() if path.read_text().strip()}
        return sorted(rooms, key=lambda room: (FLOOR_OF.get(room, -1), room))

    def not_downwards(self) -> list[str]:
        """The imports that lead to a higher floor or to another room of the same one."""
        return [
            f"{found.place}: {room_of(found.source)} imports {found.target}"
            for found in self.imports
            if not _is_downwards(room_of(found.source), room_of(found.target))
        ]

    def size(self, room: str) -> tuple[int, int, int]:
        """Files (empty ones not counted), lines and words of a room."""
        texts = [path.read_text() for module, path in self.files.items() if room_of(module) == room]
        texts = [text for text in texts if text.strip()]
        return len(texts), sum(len(text.splitlines()) for text in texts), sum(len(text.split()) for text in texts)


def _names(node: ast.AST, package: str) -> Iterable[str]:
    """The dotted names that a statement imports."""
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom():
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            return [f"{base}.{alias.name}" for alias in node.names]
        case _:
            return []


def _is_downwards(source: str, target: str) -> bool:
    if source == target or source not in FLOOR_OF or target not in FLOOR_OF:
        return True
    return FLOOR_OF[source] < FLOOR_OF[target]


def circle(graph: Edges) -> list[str]:
    """The modules of a circle, from one of them around to itself; none where there is no circle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def drawing(checkout: Checkout) -> str:
    """The graph and what is wrong with it, as text."""
    lines = [f"{'room':16}{'files':>6}{'lines':>7}{'words':>7}  imports"]
    sizes = {room: checkout.size(room) for room in checkout.rooms}
    for room, (files, count, words) in sizes.items():
        edges = checkout.rooms_graph.get(room, Counter())
        targets = ", ".join(f"{target} {edges[target]}" for target in checkout.rooms if target in edges)
        lines.append(f"{room:16}{files:6}{count:7}{words:7}  {targets}")
    files, count, words = (sum(column) for column in zip(*sizes.values(), strict=True))
    lines.append(f"{'all':16}{files:6}{count:7}{words:7}")
    problems = {
        "modules in a circle": circle(checkout.files_graph),
        "imports that do not lead downwards": checkout.not_downwards(),
    }
    for problem, found in problems.items():
        lines += ["", f"{problem}: {len(found) or 'none'}", *(f"  {line}" for line in found)]
    return "\n".join(lines)


def main(roots: list[str]) -> None:
    for root in roots or ["."]:
        print(f"{Path(root).resolve()}\n{drawing(Checkout(Path(root)))}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
