"""The cursor of the sensor lakehouse_health: where it goes on, and what it last said of each table.
Losing it costs one evaluation of each table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lakehouse_assets.declare.table import Table


class Said(NamedTuple):
    """What was last said of a table. location: of its metadata, shortened; empty where it could not be read.
    digest: of the verdicts. at: seconds since 1970."""

    location: str
    digest: str
    at: float


@dataclass
class HealthCursor:
    """last: the identifier of the table that was looked at last. said: by identifier."""

    last: str = ""
    said: dict[str, Said] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str | None) -> HealthCursor:
        """A new cursor for None and for what is no cursor of ours, such as one that a person set in the UI."""
        try:
            fields = json.loads(text or "{}")
            said = {
                name: Said(str(location), str(digest), float(at))
                for name, (location, digest, at) in fields.get("said", {}).items()
            }
            return cls(str(fields.get("last", "")), said)
        except (ValueError, TypeError, AttributeError):
            return cls()

    def text(self) -> str:
        """As Dagster keeps it."""
        return json.dumps({"last": self.last, "said": self.said}, separators=(",", ":"))

    def in_turn(self, tables: Sequence[Table]) -> list[Table]:
        return in_turn(tables, self.last)

    def forget_others(self, identifiers: Collection[str]) -> None:
        """Drop what was said of tables that are no longer declared."""
        self.said = {name: said for name, said in self.said.items() if name in identifiers}


def in_turn(tables: Sequence[Table], last: str) -> list[Table]:
    """The tables by name, beginning after the last one."""
    ordered = sorted(tables, key=lambda table: table.identifier)
    return sorted(ordered, key=lambda table: table.identifier <= last)


def short(text: str) -> str:
    """8 hex digits for a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]
