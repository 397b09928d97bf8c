"""Holds what a pass works with: the catalog, the storage of tables and of the staging prefix, and who knows of runs.

Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import UUID

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.table import Table

from lakehouse_assets.collect.leases import Chain
from lakehouse_assets.collect.ledger import Batch, Ledger, Owner
from lakehouse_assets.collect.listing import Listed, list_files, storage_now
from lakehouse_assets.collect.neighbours import Neighbours
from lakehouse_assets.collect.pass_report import notes
from lakehouse_assets.collect.refusals import refusals
from lakehouse_assets.collect.trash import Trash
from lakehouse_assets.commit.owner import OwnerMark, write_mark
from lakehouse_assets.errors import ForeignVersion
from lakehouse_assets.storage.objects import folders_in, objects_at
from lakehouse_assets.storage.place import Place, place_of

Chains = Callable[[Collection[str]], Mapping[str, Chain]]
"""Returns what Dagster knows of the runs with these tokens (leases.chains)."""


@dataclass
class Site:
    """One catalog and its staging prefix, for as many tables as are collected in one go."""

    catalog: Catalog
    staging: str
    """LAKEHOUSE_STAGING."""
    chains: Chains
    unshared: str | None = None
    """LAKEHOUSE_UNSHARED."""
    neighbours: Neighbours = field(init=False)
    _newest: dict[str, Batch] = field(default_factory=dict)
    """The last batch of each ledger below the staging prefix that has one, by the table's UUID."""

    def __post_init__(self) -> None:
        self.neighbours = Neighbours(self.catalog)

    @property
    def staging_place(self) -> Place:
        """The place of LAKEHOUSE_STAGING. Raises UnknownStorage."""
        return place_of(self.staging)

    @property
    def staging_io(self) -> FileIO:
        """A FileIO for the staging prefix, made anew with the catalog's properties."""
        return load_file_io(dict(self.catalog.properties), self.staging)

    def receipts_of(self, identifier: str) -> Place:
        """Returns the folder of a table's receipts."""
        return self.staging_place.child(identifier)

    def notes(self, uuid: UUID, name: str) -> str:
        """Returns the location at which the collector keeps something about a table."""
        return notes(self.staging, uuid, name)

    def list_table(self, table: Table, root: Place) -> Iterator[Listed]:
        """Lists the files below a table's folder, with what the catalog vends for it. Raises as list_files()."""
        return list_files(self._properties(table), root)

    def list_receipts(self, identifier: str) -> Iterator[Listed]:
        """Lists the files in the folders of a table's runs. Raises as list_files()."""
        return list_files(self.catalog.properties, self.receipts_of(identifier))

    def now_ms(self) -> int:
        """Returns the time by the storage's clock. Raises as storage_now()."""
        return storage_now(self.catalog.properties, self.staging)

    def write_mark(self, identifier: str, mark: OwnerMark, table: Table) -> None:
        """Leaves a mark of its owner in the table's folder. Raises StorageRefused, UnknownStorage."""
        with refusals(f"table {identifier}", "be marked as this catalog's", place_of(table.location())):
            write_mark(table, mark)

    def trash(self, table: Table, identifier: str, root: Place) -> Trash:
        """Returns the trash for files below the root. Raises as Trash.for_location()."""
        owner = Owner(identifier, str(table.metadata.table_uuid))
        return Trash.for_location(self._properties(table), self.staging, owner, root)

    def trashes(self, identifier: str, table: Table | None) -> list[Trash]:
        """Returns all trashes that have something of the table, also of one that was dropped and had that identifier.

        table: the one that the catalog has by that identifier, if any. Raises as Trash.for_location().
        """
        own = [self.trash(table, identifier, place_of(table.metadata.location))] if table else []
        properties = self._properties(table) if table else self.catalog.properties
        with refusals(f"table {identifier}", "be looked for in the trash", self.staging_place):
            named = [batch for batch in self._newest_batches() if batch.owner.identifier == identifier]
        others = [batch for batch in named if batch.owner not in [trash.owner for trash in own]]
        places = [(batch.owner, batch.entries[0].place) for batch in others]
        return [*own, *(Trash.for_location(properties, self.staging, *place) for place in places)]

    def _newest_batches(self) -> Iterator[Batch]:
        """Gives the last batch of each ledger: a table has the name that it had then, and lay where its files did."""
        folder = self.staging_place.child("collect")
        for uuid in folders_in(self.catalog.properties, folder):
            if uuid not in self._newest:
                ledger = Ledger(objects_at(self.catalog.properties, folder.child(f"{uuid}/ledger")))
                with suppress(ForeignVersion):  # told where that table itself is collected
                    if batch := ledger.last():
                        self._newest[uuid] = batch
            if uuid in self._newest:
                yield self._newest[uuid]

    def _properties(self, table: Table) -> dict[str, str]:
        return {**self.catalog.properties, **table.io.properties}
