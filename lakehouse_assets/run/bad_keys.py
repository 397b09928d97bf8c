"""Finds the partitions that a failed run names as bad: what its step or its audit names, and a worker's only one.

What is done about them is the queue's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from lakehouse_assets.commit.audit import AuditFinding
from lakehouse_assets.declare.modes import Rule
from lakehouse_assets.drive.chunk import Chunk, WorkerFailure


def bad_keys(
    chunks: Sequence[Chunk], failures: Iterable[WorkerFailure], findings: Iterable[AuditFinding]
) -> frozenset[str]:
    """Returns the bad partition keys of a failed run; "" stands for a table without partitions.

    Where a worker had many partitions, only the step can say which of them made it fail: it raises BadPartitions.
    Otherwise none of that worker's is named.
    """
    found = [key for finding in findings for key in _named(finding, chunks)]
    return frozenset([*found, *(key for failure in failures for key in failure.bad or _alone(failure.chunk))])


def _named(finding: AuditFinding, chunks: Sequence[Chunk]) -> Iterator[str]:
    if finding.rule == Rule.EMPTY:
        yield from finding.evidence["partitions"]
    elif isinstance(ordinal := finding.evidence.get("chunk"), int):
        yield from _alone(chunks[ordinal])


def _alone(chunk: Chunk) -> Sequence[str]:
    return (chunk.keys or ("",)) if len(chunk.keys) < 2 else ()
