"""Words a table's health for Dagster's checks: passed or not, one text, numbers to plot, the worst partitions.

What is wrong is findings.py's; how a verdict reaches Dagster is in checks.py and health_tick.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from lakehouse_assets.collect.pass_report import LastLook
from lakehouse_assets.commit.fork import FORMAT_VERSION
from lakehouse_assets.health.findings import Check, Finding, Measures, Severity, by_check, size_text
from lakehouse_assets.health.health import TableHealth

UNREADABLE = "could not be read"
NEEDS = "needs"
"""The metadata of a verdict that says what is wrong: in the same words for the same findings, whatever the numbers."""
HOURS_SINCE = "hours_since_"
"""The beginning of the names of metadata that change while the table does not."""
MS_AN_HOUR = 3_600_000


@dataclass(frozen=True)
class Verdict:
    """One check's result."""

    passed: bool
    severity: dg.AssetCheckSeverity
    description: str
    metadata: Mapping[str, Any]
    """Dagster's metadata. Ints and floats are plotted over time, so each is there whenever it is known."""

    def result(self, key: dg.AssetKey, check: Check) -> dg.AssetCheckResult:
        """Returns the result for an op."""
        return dg.AssetCheckResult(asset_key=key, check_name=check.value, **vars(self))  # Dagster can't store an enum

    def evaluation(self, key: dg.AssetKey, check: Check) -> dg.AssetCheckEvaluation:
        """Returns the event for a sensor, or for a job that has maintained the table."""
        return dg.AssetCheckEvaluation(asset_key=key, check_name=check.value, **vars(self))


Verdicts = Mapping[Check, Verdict]


def verdicts(health: TableHealth, measures: Measures, now_ms: int) -> Verdicts:
    """Returns the verdict of every check.

    measures: what finds what is wrong. now_ms: milliseconds since 1970, for the times since the last write and look.
    """
    found = by_check(health, measures)
    numbers: dict[Check, dict[str, Any]] = {
        Check.FILES: _files(health),
        Check.HISTORY: {"snapshots": health.snapshots, **_hours_since("last_write", health.last_write_ms, now_ms)},
        Check.STORAGE: _storage(health, now_ms),
    }
    is_left = health.format_version != FORMAT_VERSION
    left = f"its format version is {health.format_version}, so maintenance leaves it alone" if is_left else ""
    return {check: _verdict(found[check], numbers[check], left) for check in Check}


def not_there() -> Verdicts:
    """Returns the verdicts of a declared table that no run has created yet."""
    return _all_alike(True, "the table is not there yet: its first materialization creates it", "a first run")


def unreadable(error: Exception) -> Verdicts:
    """Returns the verdicts of a table that could not be read: unknown is a warning, neither green nor red."""
    name = type(error).__name__
    return _all_alike(False, f"{UNREADABLE}: {name}: {error}", f"to be readable ({name})")


def _all_alike(passed: bool, text: str, needs: str) -> Verdicts:
    return dict.fromkeys(Check, Verdict(passed, dg.AssetCheckSeverity.WARN, text, {NEEDS: needs}))


def _verdict(found: Sequence[Finding], numbers: Mapping[str, Any], left: str) -> Verdict:
    """Words the verdict of one check. left: why no work mends what is found; empty where it does."""
    severity = found[0].severity if found else Severity.WARN
    texts = [f.message + (f" ({f.action} mends it)" if f.action and not left else "") for f in found]
    text = "; ".join([*texts, left] if found and left else texts) or "nothing to mend"
    needs = ", ".join(f"{finding.action or 'a person'} ({finding.severity})" for finding in found) or "nothing"
    worst = {f"worst: {finding.action}": _worst(finding) for finding in found if finding.worst}
    metadata: dict[str, Any] = {**numbers, "findings": len(found), NEEDS: needs, **worst}
    return Verdict(not found, dg.AssetCheckSeverity(severity), text, metadata)


def _worst(finding: Finding) -> dg.TableMetadataValue:
    rows: Iterable[Mapping[str, str | int]] = (
        {
            "partition": partition.name,
            "files": partition.files,
            "size": size_text(partition.size),
            "fragments": partition.fragments,
            "undersized": partition.undersized,
            "delete files": partition.delete_files,
            "rows": partition.rows,
            "rows deleted at most": partition.rows_deleted_at_most,
        }
        for partition in finding.worst
    )
    return dg.MetadataValue.table([dg.TableRecord(row) for row in rows])


def _files(health: TableHealth) -> dict[str, Any]:
    return {
        "partitions": len(health.partitions),
        "files": health.total("files"),
        "bytes": health.total("size"),
        "rows": health.total("rows"),
        "target_bytes": health.target,
        "fragments": health.total("fragments"),
        "undersized": health.total("undersized"),
        "delete_files": health.total("delete_files"),
        "rows_deleted_at_most": health.total("rows_deleted_at_most"),
    }


def _hours_since(what: str, at_ms: int | None, now_ms: int) -> dict[str, float]:
    return {} if at_ms is None else {f"{HOURS_SINCE}{what}": round(max(0, now_ms - at_ms) / MS_AN_HOUR, 2)}


def _storage(health: TableHealth, now_ms: int) -> dict[str, Any]:
    return {
        "metadata_bytes": health.metadata_size,
        "data_manifests": health.data_manifests,
        "delete_manifests": health.delete_manifests,
        "empty_manifests": health.empty_manifests,
        "manifest_bytes": health.manifest_size,
        **_unneeded(health.collected, now_ms),
    }


def _unneeded(found: LastLook | None, now_ms: int) -> dict[str, float]:
    """Returns what the collector found when it last could judge the files; nothing before that."""
    if found is None or found.at_ms is None:
        return {}
    return {
        "unneeded_files": found.files,
        "unneeded_bytes": found.size,
        "unneeded_files_due": found.due,
        **_hours_since("last_look", found.at_ms, now_ms),
    }
