"""A step computes a table's rows: how it is named, loaded and hashed, and the hash of all that its worker runs.

No Dagster, no Spark: both sides of the process border import this. What Python code reaches, step_code.py finds.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

from lakehouse_assets.protocol.step_code import function_doc, reached_code, reached_packages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakehouse_assets.step.window import Window

FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""``module:function``; a check that is no such thing is SQL."""
WORKER = "lakehouse_assets.worker.__main__:main"


@dataclass(frozen=True)
class Step(ABC):
    """A thing that computes a table's rows, and that can say what it is made of."""

    reference: str
    """The text by which tables declare it."""
    form: ClassVar[re.Pattern[str]]
    """What the references of its kind look like."""

    @abstractmethod
    def load(self) -> Callable[[SparkSession, Window], DataFrame]:
        """Returns the function that computes the rows of a window; only workers call this."""

    @abstractmethod
    def source(self, imported: dict[str, str] | None = None) -> str:
        """Returns the text of all that decides which rows it computes: rows of another text are not taken over.

        imported: see step_code.reached_code(). Raises ImportError, OSError, SyntaxError or ValueError for what can't be
        read: such a table is refused when it is declared.
        """

    def packages(self) -> set[str]:
        """Returns the top-level packages that a worker needs for it, beside this library; none where it is no code."""
        return set()

    def description(self) -> str:
        """Returns what its author says of it, as text for the UI; empty if nothing."""
        return ""


class PythonStep(Step):
    """A function ``module:function`` of the project, called as ``function(spark, window)``."""

    form = FUNCTION

    def load(self) -> Callable[[SparkSession, Window], DataFrame]:
        """Imports the function."""
        module, _, function = self.reference.partition(":")
        step: Callable[[SparkSession, Window], DataFrame] = getattr(import_module(module), function)
        return step

    def source(self, imported: dict[str, str] | None = None) -> str:
        """Returns all that the function reaches in the project."""
        return reached_code(self.reference, imported)

    def packages(self) -> set[str]:
        """Returns the packages of all that the function reaches."""
        return reached_packages(self.reference)

    def description(self) -> str:
        """Returns the function's docstring."""
        return function_doc(self.reference)


KINDS: list[type[Step]] = [PythonStep]


def step_of(reference: str) -> Step:
    """Returns the step that a table declares. Raises ValueError for a text that names none."""
    for kind in KINDS:
        if kind.form.fullmatch(reference):
            return kind(reference)
    raise ValueError(f"the step {reference!r} is not of the form module:function")


def declared_code(step: str, checks: Iterable[str] = (), imported: dict[str, str] | None = None) -> str:
    """Returns 16 hex digits over the source of what a table declares: its step, and its checks that are functions.

    imported: see Step.source(). Raises ValueError for a text that names no step, ImportError for code that can't be
    read.
    """
    texts = []
    for declared in _steps(step, checks):
        try:
            texts.append(declared.source(imported))
        except (ImportError, OSError, SyntaxError, ValueError) as error:
            raise ImportError(f"the code of {declared.reference} can't be read: {error}") from error
    return _digest(*texts)


def code_packages(step: str, checks: Iterable[str] = ()) -> tuple[str, ...]:
    """Returns the top-level packages that a worker of the table needs, this library among them, in order."""
    return tuple(sorted(set[str]().union(*(declared.packages() for declared in _steps(step, checks)))))


def _steps(step: str, checks: Iterable[str]) -> list[Step]:
    return [step_of(step), *(PythonStep(check) for check in sorted(checks) if FUNCTION.fullmatch(check))]


def worker_code(step: str, checks: Iterable[str] = (), imported: dict[str, str] | None = None) -> str:
    """Returns declared_code() together with what a worker runs around it: both decide what is staged."""
    return _digest(declared_code(step, checks, imported), reached_code(WORKER, imported))


def _digest(*texts: str) -> str:
    return hashlib.sha256(repr(texts).encode()).hexdigest()[:16]
