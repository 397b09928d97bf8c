"""The cursor of the sensor lakehouse_maintenance_due: where it goes on, and which tables need nothing.
Losing it costs one look at each table; what was asked for is known by the runs."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from lakehouse_assets.declare.table import Table
from lakehouse_assets.health.health_cursor import in_turn


@dataclass
class DueCursor:
    """last: the identifier of the table that was looked at last. idle: by identifier, the metadata (shortened) in which
    nothing was to be done, not even later."""

    last: str = ""
    idle: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str | None) -> DueCursor:
        """A new cursor for None and for what is no cursor of ours, such as one that a person set in the UI."""
        try:
            fields = json.loads(text or "{}")
            return cls(str(fields.get("last", "")), {str(n): str(at) for n, at in fields.get("idle", {}).items()})
        except (ValueError, TypeError, AttributeError):
            return cls()

    def text(self) -> str:
        """As Dagster keeps it."""
        return json.dumps({"last": self.last, "idle": self.idle}, separators=(",", ":"))

    def in_turn(self, tables: Sequence[Table]) -> list[Table]:
        return in_turn(tables, self.last)

    def forget_others(self, identifiers: Collection[str]) -> None:
        """Drop tables that are no longer declared."""
        self.idle = {name: location for name, location in self.idle.items() if name in identifiers}
