"""What is wrong with a table's health, in words. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from lakehouse_assets.errors import LakehouseError

if TYPE_CHECKING:
    from lakehouse_assets.maintenance.health.health import TableHealth
    from lakehouse_assets.maintenance.health.partition_health import PartitionHealth


class Check(StrEnum):
    """A finding's asset check."""

    FILES = "files"
    HISTORY = "history"
    STORAGE = "storage"


DESCRIPTIONS = {
    Check.FILES: "Whether the table's data files are large enough and its delete files few enough, by partition. "
    "From metadata alone; the number of rows that delete files delete is an upper bound.",
    Check.HISTORY: "Whether the table keeps few enough snapshots for commits to be fast.",
    Check.STORAGE: "Whether the table's metadata.json and manifests are small and few enough to be read fast, and "
    "whether storage contains few unneeded files, according to the last run of the level collect.",
}


def error_text(error: Exception) -> str:
    """Returns the text of an error; if it is not ours, with its class, which says most."""
    return str(error) if isinstance(error, LakehouseError) else f"{type(error).__name__}: {error}"


def size_text(size: float) -> str:
    """Rounds bytes to three or four digits: ``64 MiB``."""
    # From 999.5, the format .3g would write 1e+03.
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}" if size < 999.5 else f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:,.4g} TiB"


class Severity(StrEnum):
    """A finding's severity."""

    WARN = "WARN"
    ERROR = "ERROR"
    """Readers and writers already suffer."""


@dataclass(frozen=True)
class Limit:
    """The least numbers for a warning and an error."""

    warn: float
    error: float
    """Ten times the warning, unless known better."""

    def severity(self, found: float) -> Severity | None:
        """Returns the severity; None below both limits."""
        if found >= self.error:
            return Severity.ERROR
        return Severity.WARN if found >= self.warn else None


@dataclass(frozen=True)
class Finding:
    """Something wrong with a table."""

    check: Check
    severity: Severity
    action: str | None
    """The level that mends it; None if a person must."""
    message: str
    worst: tuple[PartitionHealth, ...] = ()
    """Worst first; empty if it concerns the whole table."""


class HealthMeasure(Protocol):
    """Finds one kind of problem, as each level of maintenance does."""

    def findings(self, health: TableHealth) -> Iterable[Finding]:
        """Returns what is wrong."""
        ...


Measures = Sequence[HealthMeasure]


def by_check(health: TableHealth, measures: Measures) -> dict[Check, list[Finding]]:
    """Returns each check's findings, gravest first."""
    found = [finding for measure in measures for finding in measure.findings(health)]
    found.sort(key=lambda finding: finding.severity is not Severity.ERROR)
    return {check: [finding for finding in found if finding.check is check] for check in Check}
