"""Finds the tables whose files lie in the trashes of a staging prefix, by the ledgers: also those in no catalog now.

How files are brought back and purged is trash.py's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from lakehouse_assets.collect.ledger import Ledger, Owner
from lakehouse_assets.errors import ForeignVersion
from lakehouse_assets.storage.objects import folders_in, objects_at
from lakehouse_assets.storage.place import Place


@dataclass
class Owners:
    """The owners of all trashes below one folder. What was read is kept, as a site asks for each of its tables."""

    properties: Mapping[str, str]
    folder: Place
    """The folder ``<staging>/collect``."""
    _read: dict[str, tuple[Owner, Place]] = field(default_factory=dict)

    def named(self, identifier: str) -> Iterator[tuple[Owner, Place]]:
        """Finds the tables that had that name when something of them was put into their trash last.

        Each comes with the place of one of its files. Raises what the storage raises.
        """
        for uuid in folders_in(self.properties, self.folder):
            if uuid not in self._read:
                self._look_at(uuid)
            if uuid in self._read and self._read[uuid][0].identifier == identifier:
                yield self._read[uuid]

    def _look_at(self, uuid: str) -> None:
        ledger = Ledger(objects_at(self.properties, self.folder.child(f"{uuid}/ledger")))
        try:
            batch = ledger.last()
        except ForeignVersion:  # told where that table itself is collected
            return
        if batch:
            self._read[uuid] = batch.owner, batch.entries[0].place
