"""A chunk: one worker's share of a run, as whoever drives the workers knows it.
What its worker does lies in the attempt's payload; how a run is cut into chunks is run/plan.py's."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse_assets.keys_text import keys_text


@dataclass(frozen=True)
class Chunk:
    """One worker's share. ordinal: from 0. keys: the partition keys it covers, none for a whole table."""

    ordinal: int
    keys: tuple[str, ...]

    def __str__(self) -> str:
        return keys_text(self.keys)
