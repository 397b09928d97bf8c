"""Whatever is committed to a table, in any order: no landing changes its rows, and every reachable file exists.
Single cases, each with its reason, are in test_landing.py."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import ManifestEntry
from pyiceberg.typedef import Record

from lakehouse_assets.commit.dangling import remove_dangling_deletes
from lakehouse_assets.commit.unit import Rule, Unit
from lakehouse_assets.maintenance.manifests import rewrite_manifests
from tests.support.forks import Daily, daily_rows
from tests.support.manifests import entry_fields
from tests.support.outsiders import commit_deletes, equality_deletes, live, live_deletes, multiset, position_deletes
from tests.support.rewrites import compacted, landed, rewritten, token

DAYS = ("2013-01-01", "2013-01-02")
CARRIERS = ("AA", "BB", "CC")
days = st.sampled_from(DAYS)
carriers = st.sampled_from(CARRIERS)


class Tables(RuleBasedStateMachine):
    """One table, its writers, and rewrites that were begun at any time before."""

    @initialize()
    def create(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name)
        (path / "warehouse").mkdir()
        properties = {"type": "sql", "uri": f"sqlite:///{path}/catalog.db", "warehouse": (path / "warehouse").as_uri()}
        self.daily = Daily.create(load_catalog("lake", **properties))
        self.daily.append(daily_rows(*DAYS, each=2))
        self.begun: list[list[Unit]] = []
        self.runs = 0
        self.has_equality_deletes = False

    def teardown(self) -> None:
        self.folder.cleanup()

    @rule(days=st.sets(days, min_size=1), carrier=carriers, each=st.integers(1, 3))
    def append(self, days: set[str], carrier: str, each: int) -> None:
        before = multiset(self.daily.table)
        self.daily.append(daily_rows(*sorted(days), carrier=carrier, each=each))
        assert (multiset(self.daily.table) - before).total() == len(days) * each

    @rule(day=days, each=st.integers(0, 2))
    def publish(self, day: str, each: int) -> None:
        self.runs += 1
        name = f"run-{self.runs}"
        rows = daily_rows(day, carrier=name, each=each) if each else None
        self.daily.publish(name, [day], self.daily.stage(name, 0, [day], rows))

    @precondition(lambda self: not self.has_equality_deletes)
    @rule(carrier=carriers)
    def delete_by_copy(self, carrier: str) -> None:
        self.daily.table.delete(EqualTo("carrier", carrier))

    @rule(chosen=st.lists(st.integers(0, 20), min_size=1, max_size=2), at=st.integers(0, 1), bounds=st.booleans())
    def delete_positions(self, chosen: Sequence[int], at: int, bounds: bool) -> None:
        entries = live(self.daily.table)
        if not entries:
            return
        files = [entries[n % len(entries)].data_file for n in chosen]
        paths = {f.file_path for f in files if f.partition == files[0].partition}
        where = {path: [at] for path in paths}
        commit_deletes(self.daily.table, position_deletes(self.daily.table, where, bounds=bounds))

    @rule(day=days, carrier=carriers)
    def delete_equal(self, day: str, carrier: str) -> None:
        partition = Record(15706 + DAYS.index(day))
        commit_deletes(self.daily.table, equality_deletes(self.daily.table, "carrier", [carrier], partition))
        self.has_equality_deletes = True

    @rule()
    def roll_back(self) -> None:
        parent = self.daily.table.current_snapshot().parent_snapshot_id
        if parent is not None:
            self.daily.table.manage_snapshots().rollback_to_snapshot(parent).commit()

    @rule(day=days)
    def begin(self, day: str) -> None:
        self.begun.append(rewritten(self.daily, day))

    @rule(chosen=st.integers(0, 5))
    def land(self, chosen: int) -> None:
        if not self.begun:
            return
        units = self.begun.pop(chosen % len(self.begun))
        before = multiset(self.daily.table)
        landing = landed(self.daily, *units)
        assert multiset(self.daily.table) == before
        assert Rule.UNPROVED not in Counter(dropped.rule for _, dropped in landing.units if dropped)

    @rule()
    def compact(self) -> None:
        before = multiset(self.daily.table)
        assert not compacted(self.daily).faults
        assert multiset(self.daily.table) == before

    @rule()
    def rewrite_manifests(self) -> None:
        before, entries = multiset(self.daily.table), entry_fields(self.entries())
        rewrite_manifests(self.daily.catalog, self.daily.identifier, token())
        assert multiset(self.daily.table) == before
        assert entry_fields(self.entries()) == entries

    @rule()
    def remove_dangling_deletes(self) -> None:
        before = multiset(self.daily.table)
        remove_dangling_deletes(self.daily.catalog, self.daily.identifier, token(), {})
        assert multiset(self.daily.table) == before

    def entries(self) -> list[ManifestEntry]:
        return [*live(self.daily.table), *live_deletes(self.daily.table)]

    @invariant()
    def every_reachable_file_exists(self) -> None:
        table = self.daily.table
        for snapshot in table.metadata.snapshots:
            for manifest in snapshot.manifests(table.io):
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                    assert Path(entry.data_file.file_path.removeprefix("file://")).exists()

    @invariant()
    def the_summary_counts_what_is_there(self) -> None:
        table = self.daily.table
        assert int(table.current_snapshot().summary["total-data-files"]) == len(live(table))


def run(examples: int, steps: int) -> None:
    checked = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],  # to find a shorter example takes minutes: by hand, when there is one
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    run_state_machine_as_test(Tables, settings=checked)


def test_no_landing_changes_a_row_in_any_order_of_commits() -> None:
    run(examples=8, steps=20)


@pytest.mark.long
def test_no_landing_changes_a_row_in_many_orders_of_commits() -> None:
    run(examples=150, steps=50)
