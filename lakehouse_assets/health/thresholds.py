"""When a number of a table's health becomes a finding, and so a reason to act.
What the numbers are is health.py's; what is said of them is findings.py's."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from enum import StrEnum

from lakehouse_assets.health.gain import MIB


class Severity(StrEnum):
    """WARN: mend it soon. ERROR: readers and writers already suffer."""

    WARN = "WARN"
    ERROR = "ERROR"


@dataclass(frozen=True)
class Limit:
    """From ``warn`` on a finding is a warning, from ``error`` on an error."""

    warn: float
    error: float

    def severity(self, found: float) -> Severity | None:
        """None below both."""
        if found >= self.error:
            return Severity.ERROR
        return Severity.WARN if found >= self.warn else None


@dataclass(frozen=True)
class Thresholds:
    """When a number becomes a finding. Errors come at ten times a warning, where nothing better is known.

    fragments: in one partition; Amoro's minor optimizing begins at 12. undersized_targets: bytes of undersized files in
    one partition, as a multiple of the target size; Amoro's major optimizing begins at 1. deleted_share: of a
    partition's rows; Amoro's 0.1; an error when more rows may be deleted than stay. snapshots: a commit takes 0.3 s
    longer for each 1,000 (measured with PyIceberg), so 10,000 cost it three seconds. metadata_size: bytes that each
    commit writes and each load reads; a snapshot takes about 1 KiB, so it is more than 1,000 of them explain.
    manifests: Iceberg merges from 100 on (commit.manifest.min-count-to-merge); planning a day among 1,000 takes 10 s.
    manifest_entries: what a manifest holds after it was rewritten; manifest_surplus: no more manifests than so many
    times the number needed for that are no finding. unneeded_share: bytes that nobody needs, of those and the data
    files'; from the share on that the collector does not move without being told to.
    """

    fragments: Limit = Limit(12, 120)
    undersized_targets: Limit = Limit(1, 10)
    deleted_share: Limit = Limit(0.1, 0.5)
    snapshots: Limit = Limit(1_001, 10_000)
    metadata_size: Limit = Limit(8 * MIB, 80 * MIB)
    manifests: Limit = Limit(101, 1_000)
    manifest_entries: int = 1_000
    manifest_surplus: int = 4
    unneeded_share: Limit = Limit(0.2, 0.8)


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
"""Of a person who wants the work done wherever it would gain anything."""
