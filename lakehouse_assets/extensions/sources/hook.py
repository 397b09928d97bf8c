"""Decides which rows of a table's source a run moves."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.commit.staged import StagedChunk
from lakehouse_assets.declare.table import Table
from lakehouse_assets.errors import PublishRefused, SourceLost, StageAgain
from lakehouse_assets.extensions.sources.kafka import KafkaTopic
from lakehouse_assets.extensions.sources.postgres import PostgresTable
from lakehouse_assets.extensions.sources.source_range import SourceRange, offsets
from lakehouse_assets.inputs.hook import read_on_of, read_to
from lakehouse_assets.run.extension import RunHook, Shown
from lakehouse_assets.run.run_tags import ACCEPT_LOSS, READ_ALL, RunTags
from lakehouse_assets.step.window import MOVE
from lakehouse_assets.wire.work import HookWork, ReadOn, encode

if TYPE_CHECKING:
    from lakehouse_assets.run.run import Run

logger = logging.getLogger(__name__)

# What a person can do, at the end of a refusal: by default, if another table takes the source's rows, and if rows are
# gone between the table's position and the source's first row.
WAY_OUT = (
    f"To give up those rows, materialize with the run tag {READ_ALL}: true, which moves everything in the source from "
    "its beginning (an Append then adds rows that it already has once more). Otherwise roll the table forward, or "
    "restore the source"
)
OTHER_MOVER = (
    f"Declare the source for one table only; to move it into this table instead, add the run tag {READ_ALL}: true"
)
MOVE_REST = (
    f"To give up those rows, materialize with the run tag {ACCEPT_LOSS}: true, which moves what is still there and "
    "nothing twice. Otherwise roll the table forward, or restore the source"
)


class MoveSource(RunHook):
    """Plans which source rows a run moves, and hands the plan to the workers."""

    name: ClassVar[str] = "source"
    range: SourceRange | None = None
    """What is moved; None before begin()."""
    known: ReadOn | None = None
    """The table's positions when staging began."""

    def plan(self, run: Run, now: TableMetadata) -> Any:
        """Decides which rows are moved. Raises as source_range()."""
        return encode(SourceRange | None, source_range(run.table, now, run.context.run.tags))

    def begin(self, run: Run, now: IcebergTable, again: StageAgain | None) -> None:
        """Takes the range of the plan; decides again if all is staged again, as another run may have moved further."""
        self.known = read_on_of(run.table, now.metadata, run.context.run.tags)
        if again:
            self.range = source_range(run.table, now.metadata, run.context.run.tags)
        else:
            self.range = run.plan.part(self.name, SourceRange)

    def work(self, run: Run) -> HookWork | None:
        """Returns the range, and the position before it."""
        if self.range is None:
            return None
        told = {"range": encode(SourceRange, self.range), "read_on": encode(ReadOn | None, self.known)}
        return HookWork("lakehouse_assets.extensions.sources.worker:SourceRows", told)

    def shown(self, run: Run, forks: Sequence[StagedChunk]) -> Shown:
        """Returns the position that the source was moved to, and the rows given up."""
        assert run.table.source is not None
        to = read_to(fork.receipt for fork in forks).get(run.table.source.name)
        shown = Shown({"moved_to": to or "unchanged: there was nothing to move"})
        if self.range and (given_up := self.range.given_up):
            shown.of_run["given_up"] = given_up
        return shown


def source_range(table: Table, metadata: TableMetadata, tags: Mapping[str, str]) -> SourceRange | None:
    """Returns what a run moves of its table's source, if any.

    Raises SourceUnreachable, and PublishRefused if the source lacks unmoved rows, or declared columns.
    """
    if (source := table.source) is None:
        return None
    known = read_on_of(table, metadata, tags)
    assert known is not None  # declarations of tables with a source ensure it
    if why := known.unknown.get(source.name):
        raise _refused(table, f"it is unknown how far {source.name} was read: {why}")
    position = offsets(known, source.name)
    try:
        state = source.state(position)
    except SourceLost as error:
        raise _refused(table, str(error)) from error
    try:
        # Without WAY_OUT: each fault says itself what to do.
        source.refuse_faults(state)
    except SourceLost as error:
        raise _refused(table, str(error), way_out="") from error
    asked = RunTags.of(tags)
    # rest: the position, or the first rows still there; lost: how many are gone in between
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
    assert isinstance(source, KafkaTopic | PostgresTable)
    found = SourceRange(source, begin, source.bound(state, begin), position if lost else None)
    if lost:
        logger.warning("%s: the run gives up %s", table.identifier, found.given_up)
    return found


def mover_of(table: Table, metadata: TableMetadata) -> str:
    """Returns the mover, the table moved into, as sources record it."""
    return f"{table.identifier}@{metadata.table_uuid}"


def _refused(table: Table, problem: str, way_out: str = WAY_OUT) -> PublishRefused:
    return PublishRefused(f"table {table.identifier}: {problem}. Nothing was staged or published. {way_out}".rstrip())
