"""Writes partition keys as text, wherever a person reads them: messages, tags, the UI, a snapshot's summary.

Nothing parses this text. What a key means is in declare/.
"""

from __future__ import annotations

from collections.abc import Sequence

WHOLE = ""
"""The key of a table without partitions, where something is kept by partition key."""


def parts_of(keys: Sequence[str]) -> Sequence[str]:
    """Returns the keys under which these partitions are kept: the keys themselves, WHOLE for a table without any."""
    return keys or (WHOLE,)


def keys_text(keys: Sequence[str], *, listed: int = 1) -> str:
    """Returns ``whole table`` for no key, ``2024-01-01``, or ``2024-01-01..2024-01-31 (31)``: first, last, how many.

    listed: up to how many keys are written out one by one; more than 1 for keys that are no range.
    """
    if not any(keys):
        return "whole table"
    return ", ".join(keys) if len(keys) <= listed else f"{keys[0]}..{keys[-1]} ({len(keys)})"
