"""Receipts as the proofs that the poll loop waits for: which one proves that a chunk of this very run was staged.
Where receipts lie is protocol/receipts.py's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lakehouse_assets.protocol.receipts import Receipt, Receipts
from resources.launchers.base import Attempt


@dataclass(frozen=True)
class ReceiptProofs:
    """The receipts of one run token. work: by chunk, the Assignment.work that its receipt must be of."""

    receipts: Receipts
    token: str
    work: Callable[[], Mapping[int, str]]

    def parse(self, reported: Any, attempt: Attempt) -> Receipt | None:
        """The receipt that a worker reported, as JSON text."""
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            receipt = Receipt.from_json(reported)
            return receipt if receipt.work == attempt.work else None
        return None

    def find(self, ordinals: Iterable[int]) -> dict[int, Receipt]:
        """The durable ones, by chunk. Raises OSError when the storage can't be read."""
        found = usable(self.receipts.find(self.token, ordinals), self.work())
        return {receipt.chunk: receipt for receipt in found}


def usable(receipts: Iterable[Receipt], work: Mapping[int, str]) -> list[Receipt]:
    """The receipts that a resumed run may take: of the very work that it would ask for (Assignment.work, by chunk)."""
    return [receipt for receipt in receipts if work.get(receipt.chunk) == receipt.work]
