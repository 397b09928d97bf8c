"""Says when a number of a table's health becomes a finding, and so a reason to act.

What the numbers are is health.py's; what is said of them is findings.py's.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from enum import StrEnum

from lakehouse_assets.health.gain import MIB


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
    """The number from which on it is an error."""

    def severity(self, found: float) -> Severity | None:
        """Returns how severe a number is; None below both limits."""
        if found >= self.error:
            return Severity.ERROR
        return Severity.WARN if found >= self.warn else None


@dataclass(frozen=True)
class Thresholds:
    """The numbers that make a finding. Errors come at ten times a warning, where nothing better is known."""

    fragments: Limit = Limit(12, 120)
    """Fragments in one partition; Amoro's minor optimizing begins at 12."""
    undersized_targets: Limit = Limit(1, 10)
    """The bytes of undersized files in one partition, as a multiple of the target size; Amoro's major optimizing begins
    at 1."""
    deleted_share: Limit = Limit(0.1, 0.5)
    """The share of a partition's rows that may be deleted. Amoro's is 0.1; it is an error when as many may be deleted
    as stay."""
    snapshots: Limit = Limit(1_001, 10_000)
    """Snapshots of the table: a commit takes 0.3 s longer for each 1,000 (measured with PyIceberg), so 10,000 cost it
    three seconds."""
    metadata_size: Limit = Limit(8 * MIB, 80 * MIB)
    """The bytes of metadata.json, which each commit writes and each load reads. A snapshot takes about 1 KiB, so the
    warning comes at more than 1,000 of them explain."""
    manifests: Limit = Limit(101, 1_000)
    """Manifests of the current snapshot: Iceberg merges from 100 on (commit.manifest.min-count-to-merge); planning a
    day among 1,000 takes 10 s."""
    manifest_entries: int = 1_000
    """How many files a manifest lists after it was rewritten."""
    manifest_surplus: int = 4
    """Manifests are no finding up to so many times the number that is needed for manifest_entries."""
    unneeded_share: Limit = Limit(0.2, 0.8)
    """The bytes that nobody needs, as a share of these and the data files'. The warning begins at the share that the
    collector does not move without being told to."""


DEFAULTS = Thresholds()
_ANY = Limit(sys.float_info.min, math.inf)
FORCED = Thresholds(
    fragments=_ANY,
    undersized_targets=_ANY,
    deleted_share=Limit(0, math.inf),  # of delete files that apply to nothing, the share is 0
    snapshots=Limit(2, math.inf),
    manifests=Limit(2, math.inf),
    manifest_surplus=2,  # the rewrite of manifests is not worth it to itself below that
)
"""The thresholds of a person who wants the work done wherever it would gain anything."""
