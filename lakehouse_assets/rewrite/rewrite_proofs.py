"""Finds receipts of rewrites as the proofs that the poll loop waits for: only one of the very same work counts.

Whether the rows are the same is decided when it is landed (commit/landing_rules.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyiceberg.io import FileIO

from lakehouse_assets.protocol.receipts import read_json
from lakehouse_assets.protocol.rewriting import RewriteAssignment, RewriteReceipt
from resources.aws import READERS
from resources.launchers.base import Attempt


@dataclass(frozen=True)
class RewriteProofs:
    """The receipts of one rewrite."""

    io: FileIO
    """The FileIO of the staging prefix."""
    attempts: Mapping[int, Attempt]
    """The attempts by chunk."""

    def parse(self, reported: Any, attempt: Attempt) -> RewriteReceipt | None:
        """Returns the receipt that a worker reported; None if it is no receipt, or one of other work.

        reported: JSON text.
        """
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            receipt = RewriteReceipt.from_json(reported)
            return receipt if receipt.work == attempt.work else None
        return None

    def find(self, ordinals: Iterable[int]) -> dict[int, RewriteReceipt]:
        """Reads the durable receipts of these chunks, by ordinal. Raises OSError when the storage can't be read."""
        ordinals = list(ordinals)
        with ThreadPoolExecutor(READERS, thread_name_prefix="receipts") as pool:
            found = zip(ordinals, pool.map(self._find, ordinals), strict=True)
            return {n: receipt for n, receipt in found if receipt}

    def _find(self, ordinal: int) -> RewriteReceipt | None:
        attempt = self.attempts[ordinal]
        location = RewriteAssignment.from_json(attempt.payload).receipt
        receipt = read_json(self.io, location, RewriteReceipt.from_json)
        return receipt if receipt and receipt.work == attempt.work else None
