"""The cursor of the sensor ``queue``: how often it failed in a row, and what it told last.

Losing it loses nothing else: what waits is in the inbox, what failed is in state.py's object.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class Cursor:
    """The sensor's cursor, as the next tick reads it."""

    failures: int = 0
    """Ticks in a row in which something failed."""
    shown_at: float = 0.0
    """When the queue's asset was observed last, seconds since 1970."""
    drained: int = 0
    """Messages deleted from the queue since then."""
    parked: Mapping[str, str] = field(default_factory=dict)
    """A hash of what a table's check said last, by the table's identifier; tables without parked partitions are left
    out."""

    @classmethod
    def parse(cls, text: str | None) -> Cursor:
        """Reads a cursor. None, and text that is not ours (such as what a person set in the UI), gives a new one."""
        try:
            fields = json.loads(text or "{}")
            parked = {str(table): str(said) for table, said in fields.get("parked", {}).items()}
            numbers = (fields.get("failures", 0), fields.get("shown_at", 0.0), fields.get("drained", 0))
            return cls(int(numbers[0]), float(numbers[1]), int(numbers[2]), parked)
        except (ValueError, TypeError, AttributeError, OverflowError):
            return cls()

    def text(self) -> str:
        """Returns the cursor as text, for Dagster to keep."""
        return json.dumps(asdict(self), separators=(",", ":"))
