"""The change that removes delete files which apply to no live data file any more, as one REPLACE snapshot.

It is decided by metadata alone, anew at each attempt; no data file and no delete file is opened or deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import chain

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from lakehouse_assets.commit.change import Publishable
from lakehouse_assets.commit.deletes import DataFiles
from lakehouse_assets.commit.fork import refuse_other_versions
from lakehouse_assets.commit.landing import NothingLeft
from lakehouse_assets.commit.manifests import Entries, ManifestPlan, live_manifests
from lakehouse_assets.commit.publish import Published, publish
from lakehouse_assets.commit.tokens import RunToken


def remove_dangling_deletes(
    catalog: Catalog, identifier: str, token: RunToken, summary: Mapping[str, str]
) -> tuple[Published | None, int]:
    """Commits the removal of delete files that apply to no data file, and returns the commit and how many there were.

    The commit is None, and the number 0, if there are none. Rows stay the same.
    A position delete file that names one data file dangles when that file is gone or newer, by its path, wherever it
    lies; another position delete file, and an equality delete file, when its partition has no data file that is old
    enough.
    token: as for publish(); for a second call with it the number is 0. Raises as publish() does.
    """
    change = DanglingDeletes()
    try:
        published = publish(catalog, identifier, change, token, summary)
    except NothingLeft:
        return None, 0
    return published, change.found


@dataclass
class DanglingDeletes(Publishable):
    """The change that removes delete files."""

    found: int = 0
    """The number of delete files that dangle, as the latest attempt found it."""
    operation = Operation.REPLACE
    _data: Entries = field(default_factory=lambda: Entries(without_metrics=True))
    _deletes: Entries = field(default_factory=Entries)

    def plan(self, table: Table, missing: Collection[str]) -> ManifestPlan:
        """Plans the removal. Raises NothingLeft if no delete file dangles."""
        refuse_other_versions(table)
        listed = live_manifests(table)
        plan = ManifestPlan(untouched=[m for m in listed if m.content is ManifestContent.DATA])
        deleting = [m for m in listed if m.content is ManifestContent.DELETES]
        # The data manifests, which take long, are not read if there is nothing to remove.
        data = self._data.read(table.io, plan.untouched) if deleting else ()
        live = DataFiles(chain.from_iterable(data), table.specs())
        for manifest, entries in zip(deleting, self._deletes.read(table.io, deleting), strict=True):
            plan.split(manifest, entries, lambda entry: not live.any_needs(entry))
        self.found = len(plan.removed)
        if not self.found:
            raise NothingLeft(f"table {'.'.join(table.name())}: each delete file may apply to a live data file")
        return plan
