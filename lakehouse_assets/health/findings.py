"""What is wrong with the health of a table, in words, as the levels of maintenance measure it. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from lakehouse_assets.errors import LakehouseError

if TYPE_CHECKING:
    from lakehouse_assets.health.health import TableHealth
    from lakehouse_assets.health.partition_health import PartitionHealth


class Check(StrEnum):
    """The asset check that a finding belongs to."""

    FILES = "files"
    HISTORY = "history"
    STORAGE = "storage"


DESCRIPTIONS = {
    Check.FILES: "Whether the table's data files are large enough and its delete files few enough, by partition. "
    "From metadata alone; rows that delete files delete are an upper bound.",
    Check.HISTORY: "Whether the table keeps few enough snapshots for commits to be fast.",
    Check.STORAGE: "Whether the table's metadata.json and manifests are small and few enough to be read fast, and "
    "whether storage holds little that nobody needs, by the last look of the level collect.",
}


def error_text(error: Exception) -> str:
    """Returns an error as text: errors of ours are sentences, of others the class says most."""
    return str(error) if isinstance(error, LakehouseError) else f"{type(error).__name__}: {error}"


def size_text(size: float) -> str:
    """Returns a number of bytes as text for a person, rounded to three or four digits: ``64 MiB``."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}" if size < 999.5 else f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:,.4g} TiB"


class Severity(StrEnum):
    """The severity of a finding."""

    WARN = "WARN"
    """It should be mended soon."""
    ERROR = "ERROR"
    """Readers and writers already suffer."""


@dataclass(frozen=True)
class Limit:
    """A number's limits: it is a finding if it reaches them."""

    warn: float
    """The number from which on it is a warning."""
    error: float
    """The number from which on it is an error: ten times a warning, where nothing better is known."""

    def severity(self, found: float) -> Severity | None:
        """Returns how severe a number is; None below both limits."""
        if found >= self.error:
            return Severity.ERROR
        return Severity.WARN if found >= self.warn else None


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a table."""

    check: Check
    severity: Severity
    action: str | None
    """The level of maintenance that mends it; None where a person must."""
    message: str
    """What is wrong, as a sentence with the numbers."""
    worst: tuple[PartitionHealth, ...] = ()
    """The worst of the partitions that have it, the worst first; none if it is of the whole table."""


class HealthMeasure(Protocol):
    """One kind of thing that may be wrong with a table; a level of maintenance is one."""

    def findings(self, health: TableHealth) -> Iterable[Finding]:
        """Finds what is wrong."""
        ...


Measures = Sequence[HealthMeasure]


def by_check(health: TableHealth, measures: Measures) -> dict[Check, list[Finding]]:
    """Returns all findings of each check, the gravest first; an empty list where there is none."""
    found = [finding for measure in measures for finding in measure.findings(health)]
    found.sort(key=lambda finding: finding.severity is not Severity.ERROR)
    return {check: [finding for finding in found if finding.check is check] for check in Check}
