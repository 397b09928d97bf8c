"""Partition keys as text for people; nothing parses this text."""

from __future__ import annotations

from collections.abc import Sequence

WHOLE = ""
"""Stands for the key of a table without partitions, in what is kept by key."""


def parts_of(keys: Sequence[str]) -> Sequence[str]:
    """Returns the keys, or WHOLE for a table without partitions."""
    return keys or (WHOLE,)


def keys_text(keys: Sequence[str], *, listed: int = 1) -> str:
    """Returns ``whole table`` for no key, ``2024-01-01``, or ``2024-01-01..2024-01-31 (31)``: first, last, count.

    listed: the most keys to write out one by one; above 1 for keys that are no range.
    """
    # WHOLE counts as no key.
    if not any(keys):
        return "whole table"
    return ", ".join(keys) if len(keys) <= listed else f"{keys[0]}..{keys[-1]} ({len(keys)})"
