"""A table, all that may happen to it in any order, and what must stay true: a Hypothesis state machine.
How many steps are taken, and on which catalog, is test_lake_model.py's; what its writers do is lake_writers.py's."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import ManifestEntry
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Record

from lakehouse_assets.commit.expire import ExpiryPolicy, expire, plan_expiry
from lakehouse_assets.commit.landing import LandingRule, RewriteUnit
from lakehouse_assets.maintenance.collect.needed import Periods
from lakehouse_assets.maintenance.collect.trash import TrashSelection
from lakehouse_assets.maintenance.rewrite.manifests import remove_dangling_deletes, rewrite_manifests
from lakehouse_assets.storage.place import place_of
from tests.support.forks import daily_rows
from tests.support.lake_writers import DAYS, LakeWriters, carriers, days, fate, index, killed
from tests.support.manifests import entry_fields
from tests.support.model_runs import columns_of, projected
from tests.support.outsiders import commit_deletes, equality_deletes, live, live_deletes, multiset, position_deletes
from tests.support.rewrites import compacted_here, landed, rewritten, token

EPOCH_DAY = 15706
"""2013-01-01, as a partition has it."""
FAR = 10**14
"""A time, in epoch ms, at which all snapshots are old."""
GRACE_DAYS = Periods().grace.days + 1


class LakeModel(LakeWriters):
    """The table, its writers, outsiders and maintenance. begun: rewrites that have not landed. needed: by manifest
    list, what a snapshot's readers open; none of it ever changes."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[list[RewriteUnit]] = []
        self.needed: dict[str, list[str]] = {}

    # Outsiders

    @rule(days=st.sets(days, min_size=1), carrier=carriers, each=st.integers(1, 3))
    def append(self, days: set[str], carrier: str, each: int) -> None:
        self._appended(daily_rows(*sorted(days), carrier=carrier, each=each))

    @rule(carrier=carriers)
    def delete_by_copy(self, carrier: str) -> None:
        if not self._has_equality_deletes:
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
        self._wrote()

    @rule()
    def roll_back(self) -> None:
        parent = self._table.current_snapshot().parent_snapshot_id
        if parent in self.history and self._table.snapshot_by_id(parent):
            self._table.manage_snapshots().rollback_to_snapshot(parent).commit()
            self.rows = projected(*self.history[parent], self._table.schema())

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

    @rule(chosen=index)
    def land_rewrite(self, chosen: int) -> None:
        if not self.begun:
            return
        units = self.begun.pop(chosen % len(self.begun))
        landing = self._unchanged(lambda: landed(self.daily, *units))
        dropped = [why for _, why in landing.units if why]
        self.figures.update({"rewrites landed late": len(units) - len(dropped), "dropped": len(dropped)})
        assert LandingRule.UNPROVED not in {why.rule for why in dropped}

    @rule()
    def compact(self) -> None:
        self._compact()

    @rule(death=st.integers(1, 6), after=st.booleans())
    def die_while_compacting(self, death: int, after: bool) -> None:
        def compact() -> None:
            with killed(self.daily.catalog, death, after=after):
                compacted_here(self.daily)

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
        self.figures["snapshots expired"] += len(expired.before.snapshots) - len(expired.after.snapshots)
        assert not expired.faults
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
            back = self._unchanged(lambda: door.restore(TrashSelection()))
            self.figures["files restored"] += back.restored
            assert not back.lost, back
            assert back.restored >= report.trashed.files, back

    @rule(death=st.integers(1, 8), after=st.booleans())
    def die_while_collecting(self, death: int, after: bool) -> None:
        with killed(self.daily.catalog, death, after=after):
            self._unchanged(lambda: self.site.pass_over(self.daily.identifier))

    # What must stay true

    @invariant()
    def every_file_of_every_snapshot_exists(self) -> None:
        table = self._table
        for path in {path for snapshot in table.snapshots() for path in self._needed(snapshot)}:
            assert table.io.new_input(path).exists(), path

    def _needed(self, snapshot: Snapshot) -> list[str]:
        """The paths of a snapshot's files, read once: to read all snapshots' at each step took most of the time."""
        if (listed := snapshot.manifest_list) not in self.needed:
            found, io = [listed], self._table.io
            for manifest in snapshot.manifests(io):
                entries = manifest.fetch_manifest_entry(io, discard_deleted=True)
                found += [manifest.manifest_path, *(entry.data_file.file_path for entry in entries)]
            self.needed[listed] = found
        return self.needed[listed]

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
        rows, schema = self.history[snapshot_id]
        assert multiset(self._table, snapshot_id) == rows
        self.figures["old columns read"] += columns_of(schema) != columns_of(self._table.schema())

    @property
    def _entries(self) -> list[ManifestEntry]:
        return [*live(self._table), *live_deletes(self._table)]

    def _fates(self) -> list[str]:
        return [fate(self._table, run.name) for run in self.runs]
