"""How the code is cut: the way of one partition key through it, its files, imports and docstrings.
What is executed is traced by shape_once.py, in the run's process and in its worker's."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bench.context import ROOT, Bench
from bench.report import Section, Verdict, at_least, at_most
from tests.unit.test_private_api import GUARDS

PACKAGE = ROOT / "lakehouse_assets"
MAIN_FLOW = "run/table_run.py"
OPTIONAL = ("domains", "extensions", "definitions.py")
"""What is no part of the core: what a user edits, and extensions."""
NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}


def measure(bench: Bench) -> list[Section]:
    """Two sections: the numbers, and the files on the way."""
    way = _way(bench)
    files = {path: File(path) for path in sorted(PACKAGE.rglob("*.py")) if path.read_text().strip()}
    whole = [file for file in files.values() if "domains" not in file.path.parts]
    core = [file for file in whole if not file.is_optional]
    main = File(PACKAGE / MAIN_FLOW)
    lines, executed = sum(files[path].lines for path in way), sum(way.values())
    code = sum(file.code for file in whole)
    words = sum(file.words for file in whole) / code
    imports = sum(file.imports for file in whole) / sum(file.lines for file in whole)
    of_dagster = sum(name.startswith("dagster") for name in GUARDS)
    verdicts: list[tuple[str, Verdict]] = [
        ("files executed on a key's way", at_most("", len(way), 45)),
        ("lines in them", at_most("", lines, 7500)),
        ("lines executed a file", at_least("", executed / len(way), 40)),
        ("code lines, core without extensions and domains", at_most("", sum(file.code for file in core), 16_000)),
        ("code lines, all but domains", at_most("", code, 21_500)),
        ("files of the package without domains", at_most("", len(whole), 130)),
        ("imports, share of all lines, %", at_most("", 100 * imports, 11)),
        ("docstring words a code line", at_most("", words, 1.6)),
        (f"main flow ({MAIN_FLOW}): code lines", at_most("", main.code, 200)),
        ("main flow: modules of ours that it imports", at_most("", len(main.ours), 22)),
        ("private names of Dagster that are guarded", at_most("", of_dagster, 30)),
    ]
    wanted = ("≤ 45", "≤ 7,500", "≥ 40", "≤ 16,000", "≤ 21,500", "≤ 130", "≤ 11", "≤ 1.6", "≤ 200", "≤ 22", "≤ 30")
    rows = [
        (name, found.found.removesuffix(".00"), limit, "reached" if found.holds else "**missed**")
        for (name, found), limit in zip(verdicts, wanted, strict=True)
    ]
    slivers = sum(count <= 10 for count in way.values())
    return [
        Section(
            "The shape of the code",
            ("", "now", "wanted", ""),
            rows,
            notes=[
                "The way: a run of one day of nyc.flights on this machine, in the op's process and in its worker. Only "
                "lines in functions count.",
                f"{slivers} of its files execute ten lines or fewer.",
            ],
        ),
        Section(
            "Files on a key's way",
            ("file", "lines executed", "lines"),
            [(path.relative_to(PACKAGE), count, files[path].lines) for path, count in way.most_common()],
        ),
    ]


def _way(bench: Bench) -> Counter[Path]:
    """The lines executed, by file."""
    home = bench.environment("shape")
    answers = bench.python("-m", "bench.shape_once", bench.home / "shape-worker.json", env=home).lines
    found: Counter[Path] = Counter()
    for path, lines in answers[-1].items():
        found[Path(path)] = len(lines)
    return found


@dataclass(frozen=True)
class File:
    """One file of the package."""

    path: Path

    @property
    def is_optional(self) -> bool:
        return self.path.relative_to(PACKAGE).parts[0] in OPTIONAL

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    def _docstrings(self) -> Iterator[ast.Constant]:
        for node in ast.walk(self.tree):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                yield node.value

    @cached_property
    def code(self) -> int:
        """Lines with a token that is no comment or docstring."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        found = {n for t in tokens if t.type not in NO_CODE for n in range(t.start[0], t.end[0] + 1)}
        return len(found.difference(*(range(one.lineno, (one.end_lineno or 0) + 1) for one in self._docstrings())))

    @property
    def words(self) -> int:
        return sum(len(str(one.value).split()) for one in self._docstrings())

    @property
    def imports(self) -> int:
        nodes = (node for node in ast.walk(self.tree) if isinstance(node, (ast.Import, ast.ImportFrom)))
        return sum((node.end_lineno or 0) - node.lineno + 1 for node in nodes)

    @property
    def ours(self) -> set[str]:
        """The modules of this package that it imports."""
        nodes = (node for node in ast.walk(self.tree) if isinstance(node, ast.ImportFrom))
        return {node.module for node in nodes if node.module and node.module.startswith("lakehouse_assets")}
