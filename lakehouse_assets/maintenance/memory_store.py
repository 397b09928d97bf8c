"""Keeps what maintenance remembers of each table: one JSON object below the staging prefix, never under the table.

What is remembered is memory.py's. Whatever is wrong with an object, it counts as empty.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from pyiceberg.io import FileIO

from lakehouse_assets.maintenance.memory import Last, Memory, Ratios, Record
from lakehouse_assets.maintenance.planned import Cost
from lakehouse_assets.protocol.versions import with_version, without_version
from lakehouse_assets.run.resource import Lakehouse

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class MemoryStore:
    """The store of all tables' memories.

    Nothing is locked: the pool lets one run at a time maintain tables, and where two write at once the later one's
    knowledge stays.
    """

    io: FileIO
    prefix: str
    """Where the objects lie."""

    def location(self, uuid: UUID) -> str:
        """Returns where a table's memory lies. Deleting it closes the table's breakers and ends its cool-downs."""
        return f"{self.prefix}/{uuid}/memory.json"

    def read(self, uuid: UUID) -> Memory:
        """Reads a table's memory: empty if the object is missing, torn, of another version, or can't be read."""
        location = self.location(uuid)
        try:
            with self.io.new_input(location).open() as stream:
                return _memory(without_version(json.loads(stream.read())))
        except FileNotFoundError:
            return Memory()
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            logger.warning("%s can't be used, its table is maintained without: %s", location, error)
            return Memory()

    def write(self, uuid: UUID, memory: Memory) -> None:
        """Replaces what is kept of a table. Raises OSError."""
        with self.io.new_output(self.location(uuid)).create(overwrite=True) as stream:
            stream.write(json.dumps(with_version(asdict(memory)), indent=1).encode())


def memory_store(lakehouse: Lakehouse) -> MemoryStore:
    """Returns the store of all tables' memories.

    It lies beside the receipts: identifiers have a dot, so that no table is named ``maintenance``.
    """
    return MemoryStore(lakehouse.staging_io(), f"{lakehouse.settings.staging}/maintenance")


def _memory(fields: dict[str, Any]) -> Memory:
    return Memory(
        last={subject: Last(float(last["at"]), int(last["failures"])) for subject, last in fields["last"].items()},
        ratios={name: Ratios(**{n: float(v) for n, v in found.items()}) for name, found in fields["ratios"].items()},
        records=tuple(map(_record, fields["records"])),
    )


def _record(fields: dict[str, Any]) -> Record:
    costs = {name: Cost(**fields[name]) for name in ("expected_cost", "found_cost")}
    return Record(**{**fields, **costs})
