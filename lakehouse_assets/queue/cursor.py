"""The cursor of the sensor ``queue``: how often it failed in a row, and what it told last.
Losing it loses nothing else: what waits is in the inbox, what failed is in state.py's object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class Cursor:
    """failures: ticks in a row in which something failed. shown_at: seconds since 1970. drained: messages deleted from
    the queue since then. parked: by table, a hash of what its check said last."""

    failures: int = 0
    shown_at: float = 0.0
    drained: int = 0
    parked: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str | None) -> Cursor:
        """A new cursor for None and for what is no cursor of ours, such as one that a person set in the UI."""
        try:
            fields = json.loads(text or "{}")
            parked = {str(table): str(said) for table, said in fields.get("parked", {}).items()}
            numbers = (fields.get("failures", 0), fields.get("shown_at", 0.0), fields.get("drained", 0))
            return cls(int(numbers[0]), float(numbers[1]), int(numbers[2]), parked)
        except (ValueError, TypeError, AttributeError):
            return cls()

    def text(self) -> str:
        """As Dagster keeps it."""
        return json.dumps(asdict(self), separators=(",", ":"))
