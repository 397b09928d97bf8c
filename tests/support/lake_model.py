"""A table, all that may happen to it in any order, and what must stay true: a Hypothesis state machine.
How many steps are taken, and on which catalog, is test_lake_model.py's."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import EqualTo
from pyiceberg.io.pyarrow import PyArrowFile
from pyiceberg.manifest import ManifestEntry
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from lakehouse_assets.collect import trash
from lakehouse_assets.collect.leases import Chain, Periods
from lakehouse_assets.collect.listing import storage_now
from lakehouse_assets.collect.restore import Selection
from lakehouse_assets.commit.dangling import remove_dangling_deletes
from lakehouse_assets.commit.expire_commit import expire
from lakehouse_assets.commit.staged import StagedChunk, read_all
from lakehouse_assets.commit.tokens import find_published
from lakehouse_assets.commit.unit import Rule, Unit
from lakehouse_assets.errors import PublishRefused, RolledBack
from lakehouse_assets.maintenance.expiry import plan_expiry
from lakehouse_assets.maintenance.retention import ExpiryPolicy
from lakehouse_assets.protocol.receipts import Receipts, write_json
from lakehouse_assets.rewrite.manifests import rewrite_manifests
from lakehouse_assets.storage.place import place_of
from tests.support.collected import DAY_MS, TestSite
from tests.support.forks import Daily, daily_rows
from tests.support.manifests import entry_fields
from tests.support.outsiders import (
    Row,
    commit_deletes,
    equality_deletes,
    live,
    live_deletes,
    multiset,
    position_deletes,
)
from tests.support.rewrites import compacted, landed, rewritten, token

DAYS = ("2013-01-01", "2013-01-02")
CARRIERS = ("AA", "BB", "CC")
EPOCH_DAY = 15706
"""2013-01-01, as a partition has it."""
FAR = 10**14
"""A time, in epoch ms, at which all snapshots are old."""
days = st.sampled_from(DAYS)
carriers = st.sampled_from(CARRIERS)
index = st.integers(0, 20)


class Killed(BaseException):
    """The process ended here; nothing that it would have done afterwards happens."""


GRACE_DAYS = Periods().grace.days + 1
RESUMED_UNTIL = 14
"""Days after its creation at which a run is not resumed any more (run/resume.py)."""


@dataclass
class Staged:
    """A run whose chunk is staged: of which day, and with which rows. at: on which day of the model's clock it was
    created. ended: whether it ended without success."""

    name: str
    day: str
    chunk: StagedChunk
    created: datetime
    at: float
    ended: bool = False


class LakeModel(RuleBasedStateMachine):
    """One table, its writers, outsiders and maintenance. rows: what the table must read. history: what each snapshot
    read when it was committed."""

    open_site: ClassVar[Callable[[Path], TestSite]]
    figures: ClassVar[Counter[str]] = Counter()
    """How much happened, in all examples."""

    @initialize()
    def create(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.site = type(self).open_site(self.folder)
        # The trash has the model's clock as well.
        self.clock = mock.patch.object(
            trash, "storage_now", lambda *where: storage_now(*where) + round(self.site.days * DAY_MS)
        )
        self.clock.start()
        self.daily = Daily.create(self.site.catalog)
        self.begun: list[list[Unit]] = []
        self.runs: list[Staged] = []
        self.has_equality_deletes = False
        self.rows: Counter[Row] = Counter()
        self.history: dict[int, Counter[Row]] = {}
        self.daily.append(daily_rows(*DAYS, each=2))
        self._wrote()

    def teardown(self) -> None:
        self.clock.stop()
        shutil.rmtree(self.folder)

    # Writers

    @rule(days=st.sets(days, min_size=1), carrier=carriers, each=st.integers(1, 3))
    def append(self, days: set[str], carrier: str, each: int) -> None:
        rows = daily_rows(*sorted(days), carrier=carrier, each=each)
        self.daily.append(rows)
        assert multiset(self._table) == self.rows + _rows_of(rows)
        self._wrote()

    @rule(day=days, each=st.integers(0, 2))
    def stage(self, day: str, each: int) -> None:
        name = f"run-{len(self.runs)}"
        rows = daily_rows(day, carrier=name, each=each) if each else None
        receipt = self.daily.receipt(name, 0, [day], rows)
        io = self.site.staging_io
        write_json(
            io, Receipts(io, f"{self.site.staging}/{self.daily.identifier}").location(name, 0), receipt.to_json()
        )
        (chunk,) = read_all(self._table.io.properties, [receipt])
        self.runs.append(Staged(name, day, chunk, datetime.now(UTC), self.site.days))
        self._tell_dagster(self.runs[-1])

    @precondition(lambda self: self.runs)
    @rule(chosen=index)
    def end_without_success(self, chosen: int) -> None:
        run = self.runs[chosen % len(self.runs)]
        run.ended = True
        self._tell_dagster(run)

    @precondition(lambda self: self.runs)
    @rule(chosen=index)
    def publish(self, chosen: int) -> None:
        """Any run that has staged: also again, where it is published and others replaced its rows since."""
        self._publish(self.runs[chosen % len(self.runs)])

    @precondition(lambda self: self.runs)
    @rule(chosen=index, death=st.integers(1, 4), after=st.booleans())
    def die_while_publishing(self, chosen: int, death: int, after: bool) -> None:
        with _killed(self.daily.catalog, death, after=after):
            self._publish(self.runs[chosen % len(self.runs)])
        self.rows = self.history.get(self._head) or multiset(self._table)
        self._remember()

    def _publish(self, run: Staged) -> None:
        if run.ended and self.site.days - run.at > RESUMED_UNTIL:
            return
        run.ended = False
        self._tell_dagster(run)
        publish = partial(self.daily.publish, run.name, [run.day], run.chunk, created=run.created)
        try:
            if find_published("t", self._table.metadata, run.name):
                self._unchanged(publish)
                return
        except RolledBack:
            return
        day = repr(date.fromisoformat(run.day))
        others = Counter({row: n for row, n in self.rows.items() if row[0] != day})
        if gone := [f.file_path for f in run.chunk.files if not self._table.io.new_input(f.file_path).exists()]:
            # Only of a run that took longer than any worker may, and than it may be resumed.
            assert self.site.days - run.at > Periods().unnamed.days, gone
            with pytest.raises(PublishRefused):
                publish()
            return
        publish()
        self.figures["runs published"] += 1
        own = multiset(self._table) - others
        assert multiset(self._table) - own == others
        assert all(run.name in row[1] for row in own)
        assert own.total() == sum(file.record_count for file in run.chunk.files)
        self._wrote()
        self._tell_dagster(run)

    def _tell_dagster(self, run: Staged) -> None:
        created_ms = time.time_ns() // 1_000_000 + round(run.at * DAY_MS)
        published = _fate(self._table, run.name) not in ("None", "rolled back")
        self.site.runs[run.name] = Chain(created_ms, unfinished=not (published or run.ended), succeeded=published)

    # Outsiders

    @precondition(lambda self: not self.has_equality_deletes)
    @rule(carrier=carriers)
    def delete_by_copy(self, carrier: str) -> None:
        self._table.delete(EqualTo("carrier", carrier))
        self._wrote()

    @rule(chosen=st.lists(index, min_size=1, max_size=2), at=st.integers(0, 1), bounds=st.booleans())
    def delete_positions(self, chosen: Sequence[int], at: int, bounds: bool) -> None:
        entries = live(self._table)
        if not entries:
            return
        files = [entries[n % len(entries)].data_file for n in chosen]
        where = {f.file_path: [at] for f in files if f.partition == files[0].partition}
        commit_deletes(self._table, position_deletes(self._table, where, bounds=bounds))
        self._wrote()

    @rule(day=days, carrier=carriers)
    def delete_equal(self, day: str, carrier: str) -> None:
        partition = Record(EPOCH_DAY + DAYS.index(day))
        commit_deletes(self._table, equality_deletes(self._table, "carrier", [carrier], partition))
        self.has_equality_deletes = True
        self._wrote()

    @rule()
    def roll_back(self) -> None:
        parent = self._table.current_snapshot().parent_snapshot_id
        if parent in self.history and self._table.snapshot_by_id(parent):
            self._table.manage_snapshots().rollback_to_snapshot(parent).commit()
            self.rows = self.history[parent]

    @rule(chosen=index, name=st.sampled_from(("a", "b")))
    def tag(self, chosen: int, name: str) -> None:
        snapshots = self._table.snapshots()
        if name not in self._table.refs():
            chosen_id = snapshots[chosen % len(snapshots)].snapshot_id
            self._unchanged(lambda: self._table.manage_snapshots().create_tag(chosen_id, name).commit())

    @rule(name=st.sampled_from(("a", "b")))
    def untag(self, name: str) -> None:
        if name in self._table.refs():
            self._unchanged(lambda: self._table.manage_snapshots().remove_tag(name).commit())

    # Maintenance

    @rule(day=days)
    def begin_rewrite(self, day: str) -> None:
        self.begun.append(rewritten(self.daily, day))

    @precondition(lambda self: self.begun)
    @rule(chosen=index)
    def land_rewrite(self, chosen: int) -> None:
        units = self.begun.pop(chosen % len(self.begun))
        landing = self._unchanged(lambda: landed(self.daily, *units))
        self.figures.update({"rewrites landed late": len(landing.landed), "dropped": len(units) - len(landing.landed)})
        assert Rule.UNPROVED not in Counter(dropped.rule for _, dropped in landing.units if dropped)

    @rule()
    def compact(self) -> None:
        report = self._unchanged(lambda: compacted(self.daily))
        self.figures["partitions compacted"] += len(report.landed)
        assert not report.faults, report.faults

    @rule(death=st.integers(1, 6), after=st.booleans())
    def die_while_compacting(self, death: int, after: bool) -> None:
        def compact() -> None:
            with _killed(self.daily.catalog, death, after=after):
                compacted(self.daily)

        self._unchanged(compact)

    @rule()
    def rewrite_manifests(self) -> None:
        entries = entry_fields(self._entries)
        self._unchanged(lambda: rewrite_manifests(self.daily.catalog, self.daily.identifier, token()))
        assert entry_fields(self._entries) == entries

    @rule()
    def remove_dangling_deletes(self) -> None:
        self._unchanged(lambda: remove_dangling_deletes(self.daily.catalog, self.daily.identifier, token(), {}))

    @rule(minimum=st.integers(1, 3))
    def expire(self, minimum: int) -> None:
        runs = self._fates()
        policy = ExpiryPolicy(minimum=minimum)
        plan = lambda metadata: plan_expiry("t", metadata, policy, FAR).expiry  # noqa: E731
        expired = self._unchanged(lambda: expire(self.daily.catalog, self.daily.identifier, plan))
        self.figures["snapshots expired"] += expired.before.snapshots - expired.after.snapshots
        assert not expired.findings
        assert self._fates() == runs

    @rule(days=st.sampled_from((1, 4, 16, 30)), regret=st.booleans())
    def collect(self, days: int, regret: bool) -> None:
        """After some days, and again after the grace. regret: whether everything is brought back then."""
        runs = self._fates()
        for wait in (days, GRACE_DAYS):
            self.site.days += wait
            report = self._unchanged(lambda: self.site.pass_over(self.daily.identifier))
            self.figures.update({"files into the trash": report.trashed.files, "files purged": report.purged.files})
            assert not report.problems, report.problems
        assert self._fates() == runs
        if regret:
            door = self.site.trash(self._table, self.daily.identifier, place_of(self._table.location()))
            back = self._unchanged(lambda: door.restore(Selection()))
            self.figures["files restored"] += back.restored
            assert not back.lost and back.restored >= report.trashed.files, back

    @rule(death=st.integers(1, 8), after=st.booleans())
    def die_while_collecting(self, death: int, after: bool) -> None:
        with _killed(self.daily.catalog, death, after=after):
            self._unchanged(lambda: self.site.pass_over(self.daily.identifier))

    # What must stay true

    @invariant()
    def every_file_of_every_snapshot_exists(self) -> None:
        table = self._table
        for snapshot in table.snapshots():
            assert table.io.new_input(snapshot.manifest_list).exists()
            for manifest in snapshot.manifests(table.io):
                assert table.io.new_input(manifest.manifest_path).exists()
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                    assert table.io.new_input(entry.data_file.file_path).exists()

    @invariant()
    def the_table_reads_its_rows(self) -> None:
        self.figures["steps"] += 1
        assert multiset(self._table) == self.rows

    @invariant()
    def the_summary_counts_what_is_there(self) -> None:
        table = self._table
        assert int(table.current_snapshot().summary["total-data-files"]) == len(live(table))

    @rule(chosen=index)
    def travel_in_time(self, chosen: int) -> None:
        snapshots = self._table.snapshots()
        snapshot_id = snapshots[chosen % len(snapshots)].snapshot_id
        assert multiset(self._table, snapshot_id) == self.history[snapshot_id]

    @property
    def _table(self) -> Table:
        return self.daily.table

    @property
    def _entries(self) -> list[ManifestEntry]:
        return [*live(self._table), *live_deletes(self._table)]

    @property
    def _head(self) -> int:
        return self._table.metadata.current_snapshot_id

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
        self.history.setdefault(self._head, self.rows)

    def _fates(self) -> list[str]:
        """Of each run, what a resumed one would be told."""
        return [_fate(self._table, run.name) for run in self.runs]


def _fate(table: Table, name: str) -> str:
    try:
        return str(find_published("t", table.metadata, name))
    except RolledBack:
        return "rolled back"
    except PublishRefused as error:
        return str(error)


def _rows_of(rows: Any) -> Counter[Row]:
    return Counter(tuple(repr(value) for value in row.values()) for row in rows.to_pylist())


@contextmanager
def _killed(catalog: Catalog, death: int, *, after: bool) -> Iterator[None]:
    """What is done in the context ends before its death-th write or commit, or right after it; or it is done before."""
    left = [death]

    def deadly(act: Callable[..., Any]) -> Callable[..., Any]:
        def acting(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 and not after:
                raise Killed
            done = act(*arguments, **options)
            if left[0] == 0:
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
