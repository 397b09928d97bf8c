"""The failure of a run some of whose chunks could not be staged: why, where to look, what is kept.
Why a worker failed is drive/verdicts.py's."""

from __future__ import annotations

from typing import Any

import dagster as dg

from lakehouse_assets.drive.chunk import Results
from lakehouse_assets.protocol.receipts import Receipt
from lakehouse_assets.run.metadata import places


def staging_failure(table: str, consequence: str, results: Results[Receipt]) -> dg.Failure:
    """Names the failed chunks and shows the first of them. table: its identifier. consequence: what became of the
    others, as a sentence without its full stop."""
    failures = results.failures
    first = failures[0]
    chunks = ", ".join(str(failure.chunk) for failure in failures)
    links = [results.links[f.chunk.ordinal] for f in failures if f.chunk.ordinal in results.links]
    metadata: dict[str, Any] = {"partitions": chunks}
    if links:
        metadata["worker"] = places(links)
    metadata["traceback"] = dg.MetadataValue.md(f"```\n{first.traceback}{first.message}\n```")
    if first.log:
        metadata["log"] = dg.MetadataValue.md(f"```\n{first.log}\n```")
    return dg.Failure(
        f"table {table}, {chunks}: {first.message.rstrip('.')}. {consequence}; re-execute from failure to redo only "
        "what is missing",
        metadata=metadata,
    )
