"""The writers of the model's table: runs of every write mode, staged at one time and landing, or dying, at another.
What a run stages is in model_runs.py; outsiders, maintenance and what must stay true are in lake_model.py."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any
from unittest import mock

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import PyArrowFile
from pyiceberg.manifest import DataFileContent
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from lakehouse_assets.commit.tokens import find_published
from lakehouse_assets.drive.chunks import Journal
from lakehouse_assets.errors import PublishRefused, RolledBack, StageAgain
from lakehouse_assets.maintenance.collect.needed import Periods
from tests.support.forks import Daily, daily_rows
from tests.support.model_runs import NEXT, Changes, Kind, Rows, Run, columns_of, extra_of, rows_of, shape_of
from tests.support.model_site import SiteModel
from tests.support.outsiders import live_deletes, multiset
from tests.support.rewrites import compacted_here

DAYS = ("2013-01-01", "2013-01-02")
CARRIERS = ("AA", "BB", "CC")
days = st.sampled_from(DAYS)
carriers = st.sampled_from(CARRIERS)
index = st.integers(0, 20)
changes = st.dictionaries(st.tuples(days, carriers), st.none() | st.integers(5, 7), min_size=1, max_size=3)
RESUMED_UNTIL = 14
"""Days after its creation at which a run is not resumed any more (run/resume.py)."""


class Killed(BaseException):
    """The process ended here; nothing that it would have done afterwards happens."""


class LakeWriters(SiteModel):
    """One table and its writers. rows: what the table must read. history: what each snapshot read when it was
    committed, and with which columns. landing: what the table reads if the publish that was begun last has landed."""

    @initialize()
    def create(self) -> None:
        self.open()
        self.daily = Daily.create(self.site.catalog)
        self.runs: list[Run] = []
        self.rows: Rows = Counter()
        self.landing: Rows = Counter()
        self.history: dict[int, tuple[Rows, Schema]] = {}
        self.daily.append(daily_rows(*DAYS, each=2))
        self._wrote()

    def teardown(self) -> None:
        self.close(self.daily.identifier)

    @rule(day=days, each=st.integers(0, 2), changes_columns=st.booleans(), at_once=st.booleans())
    def stage_overwrite(self, day: str, each: int, changes_columns: bool, at_once: bool) -> None:
        self._begin(Kind.OVERWRITE, day, each=each, changes_columns=changes_columns, at_once=at_once)

    @rule(day=days, each=st.integers(1, 2), changes_columns=st.booleans(), at_once=st.booleans())
    def stage_append(self, day: str, each: int, changes_columns: bool, at_once: bool) -> None:
        self._begin(Kind.APPEND, day, each=each, changes_columns=changes_columns, at_once=at_once)

    @rule(day=days, each=st.integers(1, 3), changes_columns=st.booleans(), at_once=st.booleans())
    def stage_full_refresh(self, day: str, each: int, changes_columns: bool, at_once: bool) -> None:
        self._begin(Kind.REFRESH, day, each=each, changes_columns=changes_columns, at_once=at_once)

    @rule(changes=changes, changes_columns=st.booleans(), at_once=st.booleans())
    def stage_merge(self, changes: Changes, changes_columns: bool, at_once: bool) -> None:
        if not self._has_equality_deletes:
            self._begin(Kind.MERGE, DAYS[0], changes=changes, changes_columns=changes_columns, at_once=at_once)

    @rule(changes=changes, by=st.sampled_from(("an append", "a compaction")))
    def disturb_a_merge(self, changes: Changes, by: str) -> None:
        """Between its staging and its landing. If it could not land, it does the second time."""
        if self._has_equality_deletes:
            return
        self._begin(Kind.MERGE, DAYS[0], changes=changes, changes_columns=False, at_once=False)
        if by == "an append":
            self._appended(daily_rows(*DAYS, carrier=min(carrier for _, carrier in changes)))
        else:
            self._compact()
        for _ in range(2):
            self._publish(self.runs[-1])
        assert fate(self._table, self.runs[-1].name) != "None"

    def _begin(
        self,
        kind: Kind,
        day: str,
        *,
        each: int = 0,
        changes: Changes | None = None,
        changes_columns: bool,
        at_once: bool,
    ) -> None:
        """at_once: whether the run lands before anything else happens."""
        extra = extra_of(self._table)
        self.runs.append(
            Run(
                f"run-{len(self.runs)}",
                kind,
                day,
                each,
                changes or {},
                NEXT[extra] if changes_columns else extra,
                datetime.now(UTC),
                self.site.days,
            )
        )
        self._unchanged(lambda: self._stage(self.runs[-1]))
        if at_once:
            self._publish(self.runs[-1])

    def _stage(self, run: Run) -> None:
        receipt = run.stage(self.daily)
        journal = Journal(self.site.staging_io, f"{self.site.staging}/{self.daily.identifier}/{run.name}")
        receipt.write(journal.io, journal.receipt_location(0))
        self._tell_dagster(run)

    @rule(chosen=index)
    def end_without_success(self, chosen: int) -> None:
        if not (run := self._chosen(chosen)):
            return
        run.ended = True
        self._tell_dagster(run)

    @rule(chosen=index)
    def publish(self, chosen: int) -> None:
        """Any run that has staged: also again, where it is published and others replaced its rows since."""
        if run := self._chosen(chosen):
            self._publish(run)

    @rule(chosen=index, death=st.integers(1, 4), after=st.booleans())
    def die_while_publishing(self, chosen: int, death: int, after: bool) -> None:
        if not (run := self._chosen(chosen)):
            return
        was = fate(self._table, run.name)
        with killed(self.daily.catalog, death, after=after):
            self._publish(run)
        if fate(self._table, run.name) != was:
            self.rows = self.landing
        self._remember()

    def _chosen(self, chosen: int) -> Run | None:
        """0: the run that staged last; None where none has staged.

        That is no precondition: a death comes by counting calls, whose number may differ from one replay to the next,
        and Hypothesis ends with an error where the rules that may come next differ.
        """
        return self.runs[-1 - chosen % len(self.runs)] if self.runs else None

    def _publish(self, run: Run) -> None:
        if run.ended and self.site.days - run.at > RESUMED_UNTIL:
            return
        run.ended = False
        self._tell_dagster(run)
        publish = partial(run.publish, self.daily)
        try:
            if find_published("t", self._table.metadata, run.name):
                assert self._unchanged(publish).repeated
                self.figures["published again"] += 1
                return
        except RolledBack:
            return
        if gone := [f.file_path for f in run.chunk.files if not self._table.io.new_input(f.file_path).exists()]:
            # Only of a run that took longer than any worker may, and than it may be resumed.
            assert self.site.days - run.at > Periods().unnamed.days, gone
            with pytest.raises(PublishRefused):
                publish()
            return
        self._land(run)
        self._tell_dagster(run)

    def _land(self, run: Run) -> None:
        """Publish what was not published; or find out that it does not fit, and whether that is so."""
        table = self._table
        self.landing, columns = run.landed(self.rows, table.schema())
        problem = self._problem(run)
        if isinstance(problem, StageAgain):
            same_head = self._head == run.chunk.receipt.base_snapshot_id
            assert self._columns_moved(run) or (run.kind is Kind.MERGE and not same_head), problem
            self._stage_again(run)
            return
        if problem:
            assert self._columns_moved(run), problem
            self._give_up(run)
            return
        assert self._table.schema().fields == columns.fields
        if not run.evolution.applied:
            assert self._fits(run), "files of columns that were dropped or changed have landed"
        self.figures.update([f"{run.kind} landed"])
        self.figures["schema changes"] += columns_of(columns) != columns_of(table.schema())
        assert multiset(self._table) == self.landing
        self.rows = self.landing
        self._remember()

    def _problem(self, run: Run) -> Exception | None:
        """Why the run does not land."""
        try:
            run.publish(self.daily)
        except (StageAgain, PublishRefused) as problem:
            return problem
        return None

    def _columns_moved(self, run: Run) -> bool:
        """Whether the columns that the run needs are not those that the table had when it was staged."""
        if not run.evolution.applied:
            return not self._fits(run)
        return shape_of(self._table) != run.began_with

    def _fits(self, run: Run) -> bool:
        return columns_of(run.chunk.schema) <= columns_of(self._table.schema())

    def _stage_again(self, run: Run) -> None:
        if run.kind is Kind.MERGE and self._has_equality_deletes:
            return  # PyIceberg can't read the fork; after a compaction it can
        try:
            self._unchanged(lambda: self._stage(run))
        except PublishRefused:
            self._give_up(run)
            return
        self.figures[f"{run.kind} staged again"] += 1

    def _give_up(self, run: Run) -> None:
        self.figures["runs refused"] += 1
        run.ended = True
        self._tell_dagster(run)

    def _tell_dagster(self, run: Run) -> None:
        published = fate(self._table, run.name) not in ("None", "rolled back")
        self.tell_dagster(run.name, run.at, published=published, ended=run.ended)

    @property
    def _has_equality_deletes(self) -> bool:
        return any(e.data_file.content is DataFileContent.EQUALITY_DELETES for e in live_deletes(self._table))

    @property
    def _table(self) -> Table:
        return self.daily.table

    @property
    def _head(self) -> int:
        return self._table.metadata.current_snapshot_id

    def _appended(self, rows: Any) -> None:
        """Somebody else adds rows."""
        self.daily.append(rows)
        self.rows = self.rows + rows_of(rows, self._table.schema())
        self._remember()

    def _compact(self) -> None:
        report = self._unchanged(lambda: compacted_here(self.daily))
        self.figures["partitions compacted"] += len(report.landed)
        assert not report.faults, report.faults
        assert not report.needs_spark, report.needs_spark

    def _wrote(self) -> None:
        """Somebody changed rows, as they were meant to."""
        self.rows = multiset(self._table)
        self._remember()

    def _unchanged(self, act: Callable[[], Any]) -> Any:
        """Do what must change no row."""
        before = multiset(self._table)
        done = act()
        assert multiset(self._table) == before
        self._remember()
        return done

    def _remember(self) -> None:
        table = self._table
        self.history.setdefault(table.metadata.current_snapshot_id, (self.rows, table.schema()))


def fate(table: Table, name: str) -> str:
    """What a resumed run of this name would be told."""
    try:
        return str(find_published("t", table.metadata, name))
    except RolledBack:
        return "rolled back"
    except PublishRefused as error:
        return str(error)


@contextmanager
def killed_behind_commit(catalog: Catalog) -> Iterator[None]:
    """What is done in the context ends right behind its first commit, of which it does not hear."""
    commit = catalog.commit_table

    def unheard(*arguments: Any) -> None:
        commit(*arguments)
        raise Killed

    with mock.patch.object(catalog, "commit_table", unheard), suppress(Killed):
        yield


@contextmanager
def killed(catalog: Catalog, death: int, *, after: bool) -> Iterator[None]:
    """What is done in the context ends before its death-th write or commit, or right after it; or it is done before."""
    left = [death]

    def deadly(act: Callable[..., Any]) -> Callable[..., Any]:
        def acting(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            is_last = left[0] == 0  # a commit writes as well: the count has gone on when it is done
            if is_last and not after:
                raise Killed
            done = act(*arguments, **options)
            if is_last:
                raise Killed
            return done

        return acting

    with (
        mock.patch.object(catalog, "commit_table", deadly(catalog.commit_table)),
        mock.patch.object(PyArrowFile, "create", deadly(PyArrowFile.create)),
        mock.patch.object(os, "replace", deadly(os.replace)),
        mock.patch.object(os, "rename", deadly(os.rename)),
        suppress(Killed),
    ):
        yield
