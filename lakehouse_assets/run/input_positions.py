"""Has a run's workers read on from where the table's last commit was, and lets the inputs keep what is not read yet.

Where positions lie is commit/positions.py's; what a worker reads from there, worker/input_changes.py's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.commit.pins import set_tags
from lakehouse_assets.commit.positions import READER, Moves, read_on
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import with_retries
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.run.run_tags import RunTags
from lakehouse_assets.wire.receipts import Receipt
from lakehouse_assets.wire.work import MAIN, Position, ReadOn, table_and_ref

logger = logging.getLogger(__name__)


def read_on_of(table: Table, metadata: TableMetadata, tags: Mapping[str, str]) -> ReadOn | None:
    """Returns how far a table has read its inputs, for the workers of a run; None if its runs can't read on.

    Runs that replace rows would lose what earlier ones have read, and each chunk of partitions would read all changes.
    metadata: that its rows are staged on. tags: the run's. Raises BadRunTag.
    """
    reads_all = RunTags.of(tags).read_all
    if table.write_mode.replaces or table.partitions is not None:
        return None
    return ReadOn() if reads_all else read_on(metadata)


def moves_of(receipts: Iterable[Receipt], staged_on: TableMetadata) -> Moves:
    """Returns what a run does to its table's positions. receipts: what is published. staged_on: the table then."""
    to = {name: position for receipt in receipts for name, position in receipt.read_to.items()}
    return Moves(to, read_on(staged_on)) if to else Moves()


def keep_unread(lakehouse: Lakehouse, table: str) -> None:
    """Has each input keep what the table has not read yet, by a tag at the snapshot up to which it has. Raises nothing.

    It follows the commit, so that a run that dies in between leaves an older tag, which keeps more. What can't be
    tagged is told in the log: its rows are read all the same, while its own settings keep them. table: its identifier.
    """
    try:
        catalog = lakehouse.catalog()
        positions = read_on(with_retries(lambda: catalog.load_table(table)).metadata).positions
    except Exception as error:  # of catalogs and storages; the rows are published
        logger.warning("%s: what it has not read yet of its inputs may expire, as it can't be read: %r", table, error)
        return
    for name, text in positions.items():
        if ":" in name:  # a source, which is purged only behind what is moved
            continue
        position, (identifier, ref) = Position.parse(text), table_and_ref(name)
        tag = f"{READER}{table}" if ref == MAIN else f"{READER}{table}.{ref}"

        def wanted(found: TableMetadata, tag: str = tag, position: Position = position) -> dict[str, int | None]:
            is_there = found.table_uuid == position.uuid and found.snapshot_by_id(position.snapshot_id) is not None
            return {tag: position.snapshot_id} if is_there else {}

        try:
            set_tags(catalog, identifier, wanted)
        except Exception as error:  # of catalogs and storages; the rows are published
            logger.warning("%s: %s may expire before it is read, as it can't be tagged: %r", table, name, error)
