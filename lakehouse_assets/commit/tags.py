"""Sets and removes tags of a table, whatever else is committed meanwhile.

Which tags there are is decided where they are needed: releases/publish_release.py, run/input_positions.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyiceberg.catalog import Catalog
from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.commit.publish import commit_persistently
from lakehouse_assets.environment.catalog import with_retries
from lakehouse_assets.errors import PublishContended


def set_tags(catalog: Catalog, identifier: str, wanted: Callable[[TableMetadata], Mapping[str, int | None]]) -> None:
    """Sets and removes tags of a table, in one commit, or in none where all are as they should be.

    wanted: asked at each attempt with the table as it is then; returns the snapshot of each tag, None for a tag that
    goes; an error that it raises on purpose (LakehouseError) ends the attempts. Raises PublishContended when they ran
    out, and what catalogs raise.
    """

    def attempt() -> bool:
        table = with_retries(lambda: catalog.load_table(identifier))
        refs, change, changes = table.metadata.refs, table.manage_snapshots(), 0
        for tag, snapshot_id in wanted(table.metadata).items():
            if snapshot_id is None and tag in refs:
                change, changes = change.remove_tag(tag), changes + 1
            elif snapshot_id is not None and (tag not in refs or refs[tag].snapshot_id != snapshot_id):
                change, changes = change.create_tag(snapshot_id, tag), changes + 1
        if changes:
            change.commit()
        return True

    def contended(problem: str, failure: Exception) -> PublishContended:
        return PublishContended(f"table {identifier}: its tags are {problem}, the last error was {failure!r}")

    commit_persistently(identifier, "tag", attempt, lambda: None, contended)
