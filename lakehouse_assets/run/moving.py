"""Decides which rows of its source a run moves."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.declare.table import Table
from lakehouse_assets.errors import PublishRefused, SourceLost
from lakehouse_assets.run.inputs import read_on_of
from lakehouse_assets.run.run_tags import ACCEPT_LOSS, READ_ALL, RunTags
from lakehouse_assets.step.window import MOVE
from lakehouse_assets.wire.work import SourceRange

logger = logging.getLogger(__name__)

WAY_OUT = (
    f"If those rows are to be given up, materialize with the run tag {READ_ALL}: true, which moves what the source has "
    "from its beginning (an Append then adds rows once more that it has); else roll the table forward, or restore the "
    "source"
)
OTHER_MOVER = (
    f"Declare the source for one table only; to move it into this one from now on, add the run tag {READ_ALL}: true"
)
MOVE_REST = (
    f"If those rows are to be given up, materialize with the run tag {ACCEPT_LOSS}: true, which moves what is still "
    "there and nothing twice; else roll the table forward, or restore the source"
)


def source_range(table: Table, metadata: TableMetadata, tags: Mapping[str, str]) -> SourceRange | None:
    """Returns what a run moves of its table's source; None for a table without one.

    Raises SourceUnreachable, and PublishRefused if the source lacks rows that were not moved yet, or declared columns.
    """
    if (source := table.source) is None:
        return None
    known = read_on_of(table, metadata, tags)
    assert known is not None  # declarations of tables with a source ensure it
    if why := known.unknown.get(source.name):
        raise _refused(table, f"how far {source.name} was read can't be known: {why}")
    position = known.offsets(source.name)
    try:
        state = source.state(position)
    except SourceLost as error:
        raise _refused(table, str(error)) from error
    try:
        source.refuse_faults(state)
    except SourceLost as error:
        raise _refused(table, str(error), way_out="") from error
    asked = RunTags.of(tags)
    rest = state.still_there(position) if position else None
    lost = position.before(rest) if position and rest else 0
    if lost and not asked.accept_loss:
        raise _refused(table, str(state.problem(source.name, position)), MOVE_REST)
    if (problem := state.problem(source.name, rest)) and not asked.read_all:
        raise _refused(table, problem)
    names = [column.name for column in table.schema.columns]
    if problem := source.column_problem(names, may_lack=table.step != MOVE):
        raise _refused(table, problem, way_out="")
    try:
        source.claim(state, mover_of(table, metadata), takes_over=asked.read_all)
    except SourceLost as error:
        raise _refused(table, str(error), way_out=OTHER_MOVER) from error
    begin = state.begin(rest)
    found = SourceRange(source, begin, source.bound(state, begin), position if lost else None)
    if lost:
        logger.warning("%s: the run gives up %s", table.identifier, found.given_up)
    return found


def mover_of(table: Table, metadata: TableMetadata) -> str:
    """Returns what a source records as its mover."""
    return f"{table.identifier}@{metadata.table_uuid}"


def _refused(table: Table, problem: str, way_out: str = WAY_OUT) -> PublishRefused:
    return PublishRefused(f"table {table.identifier}: {problem}. Nothing was staged or published. {way_out}".rstrip())
