"""The audit as Dagster shows it: a check result with numbers that the UI plots over time, and a red audit's failure.

What is checked is commit/audit.py's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import dagster as dg

from lakehouse_assets.commit.audit import LAKE, TEXT, AuditFinding
from lakehouse_assets.commit.staged import StagedChunk, distinct_files
from lakehouse_assets.declare.modes import Rule
from lakehouse_assets.declare.table import Table
from lakehouse_assets.keys_text import keys_text
from lakehouse_assets.run.metadata import AUDIT

# What the audit checks in every write mode.
RULES_OF_EVERY_MODE = ("chunks", LAKE, TEXT)


def check_result(
    table: Table,
    run_id: str,
    keys: Sequence[str],
    staged: Sequence[StagedChunk],
    findings: Sequence[AuditFinding],
    seconds: float,
) -> dg.AssetCheckResult:
    """Returns the check result of an audit that took ``seconds``."""
    files = distinct_files(staged)
    broken = Counter(finding.rule for finding in findings)
    rules = (*RULES_OF_EVERY_MODE, *(rule for rule in Rule if rule in table.write_mode.rules))
    evidence = {f"{n} {f.rule}": dg.MetadataValue.json(dict(f.evidence)) for n, f in enumerate(findings, start=1)}
    return dg.AssetCheckResult(
        check_name=AUDIT,
        asset_key=table.key,
        passed=not findings,
        description="; ".join(finding.message for finding in findings) or None,
        metadata={
            "run": dg.MetadataValue.dagster_run(run_id),
            "partitions": keys_text(keys),
            "rows": sum(file.record_count for file in files),
            "files": len(files),
            "bytes": sum(file.file_size_in_bytes for file in files),
            "seconds": round(seconds, 3),
            # Also the rules without a finding: the UI plots a line only where there are zeros.
            **{f"findings_{rule}": broken[rule] for rule in rules},
            **evidence,
        },
    )


def audit_failure(table: Table, keys: Sequence[str], findings: Sequence[AuditFinding]) -> dg.Failure:
    """Returns the failure of a run with a red audit. It is not retried: a retry would find the same."""
    advice = "; after a change of the step re-execute from failure, after a change of its input re-execute all"
    if any(finding.rule == LAKE for finding in findings):  # which says itself what to do
        advice = ""
    return dg.Failure(
        f"table {table.identifier}, {keys_text(keys)}: the audit found "
        f"{'; '.join(finding.message for finding in findings)}. Nothing was published{advice}",
        allow_retries=False,
    )
