"""What a measurement found, and how it is printed: spreads, sections, verdicts, all as Markdown.
Nothing is measured here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median


@dataclass(frozen=True)
class Spread:
    """Repetitions of one number, in order."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(tuple(values))

    @property
    def median(self) -> float:
        return median(self.values)

    def __str__(self) -> str:
        """Median, and from least to greatest where there is more than one."""
        if len(self.values) == 1:
            return f"{self.values[0]:.2f}"
        return f"{self.median:.2f} ({min(self.values):.2f} to {max(self.values):.2f})"


@dataclass(frozen=True)
class Verdict:
    """A number that had to be reached."""

    claim: str
    found: str
    holds: bool

    def __str__(self) -> str:
        return f"- {'reached' if self.holds else '**missed**'}: {self.claim}; found {self.found}"


@dataclass(frozen=True)
class Section:
    """One table of the report. rows: as many cells each as the header. notes: what a reader must know to judge it."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    verdicts: Sequence[Verdict] = field(default_factory=tuple)
    notes: Sequence[str] = field(default_factory=tuple)

    def __str__(self) -> str:
        lines = [f"## {self.title}", ""]
        if self.rows:
            lines += [_line(self.header), _line(["---"] * len(self.header)), *map(_line, self.rows), ""]
        lines += [str(v) for v in self.verdicts]
        lines += [f"- {note}" for note in self.notes]
        return "\n".join(lines) + "\n"


def at_most(claim: str, found: float, limit: float, unit: str = "") -> Verdict:
    """A verdict that holds up to and including the limit."""
    return Verdict(claim, f"{found:.2f}{unit}", found <= limit)


def at_least(claim: str, found: float, limit: float, unit: str = "") -> Verdict:
    """A verdict that holds from the limit on."""
    return Verdict(claim, f"{found:.2f}{unit}", found >= limit)


def _line(cells: Sequence[object]) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"
