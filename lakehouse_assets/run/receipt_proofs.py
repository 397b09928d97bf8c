"""Receipts as the proofs that the poll loop waits for: only one of the very same work proves that a chunk was staged.

Where receipts lie is protocol/receipts.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lakehouse_assets.protocol.receipts import Receipt, Receipts
from resources.launchers.base import Attempt


@dataclass(frozen=True)
class ReceiptProofs:
    """The receipts of one run token, as proofs."""

    receipts: Receipts
    token: str
    work: Callable[[], Mapping[int, str]]
    """Returns the Assignment.work that each chunk's receipt must have, by the chunk's ordinal."""

    def parse(self, reported: Any, attempt: Attempt) -> Receipt | None:
        """Parses the receipt that a worker reported as JSON text; None if it is none, or is one of other work."""
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            receipt = Receipt.from_json(reported)
            return receipt if receipt.work == attempt.work else None
        return None

    def find(self, ordinals: Iterable[int]) -> dict[int, Receipt]:
        """Finds the durable receipts of these chunks, by ordinal; leaves out those of other work.

        Raises OSError when the storage can't be read.
        """
        work = self.work()
        return {r.chunk: r for r in self.receipts.find(self.token, ordinals) if work.get(r.chunk) == r.work}
