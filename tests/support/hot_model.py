"""A table and its source, all that may happen to them in any order, what must stay true: a Hypothesis state machine.
How many steps are taken is test_hot_model.py's; what its writers and movers do is hot_movers.py's."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from lakehouse_assets.commit.expire import ExpiryPolicy, expire, plan_expiry
from lakehouse_assets.errors import SourceLost
from lakehouse_assets.extensions.sources.purge import purgeable
from lakehouse_assets.extensions.sources.warm import warm
from lakehouse_assets.maintenance.rewrite.compact import compact
from tests.support.hot_movers import KEYS, HotMovers, Rows, written
from tests.support.hot_world import with_gaps
from tests.support.lake_model import FAR, GRACE_DAYS
from tests.support.lake_writers import index
from tests.support.rewrites import token

MEANWHILE = ("write", "move", "move", "purge", "put back", "compact", "compact as others do", "set main")


class HotModel(HotMovers):
    """The source, the table, and all who read, keep or spoil them."""

    @rule()
    def purge(self) -> None:
        if found := purgeable(self.site.catalog, self.table, time.time() + 60):
            self.figures["rows purged"] += found.source.purge(found.upto)
            self.purged = max(self.purged, self._known or 0)

    @rule(keys=st.sets(st.sampled_from(KEYS), min_size=1))
    def put_back(self, keys: Collection[int]) -> None:
        """But for rows that are being written: it would wait."""
        free = {*keys}.difference(*(writer.open for writer in self.writers))
        where = f"n in ({', '.join(map(str, sorted(free)))})"
        if not free:
            return
        if self._is_lost or not self._known:
            with pytest.raises(SourceLost):
                warm(self.site.catalog, self.table, where)
            return
        self.figures["rows put back"] += warm(self.site.catalog, self.table, where)

    # Maintenance

    @rule()
    def compact(self) -> None:
        knows, now = bool(self._known), self._now
        report = compact(self.site.catalog, self.table.identifier, token(), min_input_files=1)
        assert not report.faults, report.faults
        self._committed(now, says=knows)
        self.figures["compactions"] += len(report.landed)

    @rule(minimum=st.integers(1, 3), others=st.integers(0, 2))
    def expire(self, minimum: int, others: int) -> None:
        """After others have committed so often, who say nothing of positions."""
        for _ in range(others):
            self.compact_as_others_do()
        policy, known = ExpiryPolicy(minimum=minimum), self._known
        plan = lambda metadata: plan_expiry("t", metadata, policy, FAR).expiry  # noqa: E731
        expired = expire(self.site.catalog, self.table.identifier, plan)
        self.figures["snapshots expired"] += len(expired.before.snapshots) - len(expired.after.snapshots)
        assert not expired.faults
        assert self._known == known, "it is not known any more how far the source was moved"

    @rule(days=st.sampled_from((1, 4, 16)))
    def collect(self, days: int) -> None:
        """After some days, and again after the grace."""
        for wait in (days, GRACE_DAYS):
            self.site.days += wait
            report = self.site.pass_over(self.table.identifier)
            self.figures.update({"files into the trash": report.trashed.files, "files purged": report.purged.files})
            assert not report.problems, report.problems

    # Outsiders

    @rule()
    def compact_as_others_do(self) -> None:
        now, rows = self._now, self._cold.scan().to_arrow()
        if rows.num_rows:
            self._cold.overwrite(rows)
            self._committed(now, says=False)
            self.figures["compactions by others"] += 1

    @rule(chosen=index, all_of_them=st.booleans(), compacts=st.booleans())
    def expire_as_others_do(self, chosen: int, all_of_them: bool, compacts: bool) -> None:
        """What no branch and no tag names, all of it or one. compacts: whether they have compacted the table before."""
        if compacts:
            self.compact_as_others_do()
        table, was_lost = self._cold, self._is_lost
        held = {ref.snapshot_id for ref in table.metadata.refs.values()}
        free = [snapshot.snapshot_id for snapshot in table.snapshots() if snapshot.snapshot_id not in held]
        if free:
            table.maintenance.expire_snapshots().by_ids(free if all_of_them else [free[chosen % len(free)]]).commit()
            self.figures["positions lost"] += self._is_lost and not was_lost

    @rule(chosen=index)
    def set_main(self, chosen: int) -> None:
        """Back, or forward again, or to what is on no branch any more."""
        heads = [one.snapshot_id for one in self._cold.snapshots() if one.snapshot_id in self.at]
        if heads:
            was_lost = self._is_lost
            wanted = heads[-1 - chosen % len(heads)]
            self._cold.manage_snapshots().set_current_snapshot(snapshot_id=wanted).commit()
            self.figures["set behind a purge" if self._is_lost and not was_lost else "set elsewhere"] += 1

    @rule(chosen=index, name=st.sampled_from(("a", "b")))
    def tag(self, chosen: int, name: str) -> None:
        snapshots = [one.snapshot_id for one in self._cold.snapshots()]
        if name in self._cold.refs():
            self._cold.manage_snapshots().remove_tag(name).commit()
        elif snapshots:
            self._cold.manage_snapshots().create_tag(snapshots[chosen % len(snapshots)], name).commit()

    # Readers, and what must stay true

    @rule(
        deleted=written,
        acts=st.lists(st.tuples(st.integers(1, 5), st.sampled_from(MEANWHILE)), min_size=2, max_size=6),
        chosen=index,
    )
    def read_meanwhile(self, deleted: Mapping[int, bool], acts: list[tuple[int, str]], chosen: int) -> None:
        """Of what is written just now, and what was before. Between the steps of one reader, others act."""
        self.write(deleted, commits=True)
        seen = [(self.rows, self._is_lost)]
        gaps, is_acting = 0, False

        def gap() -> None:  # none in what is done in a gap
            nonlocal gaps, is_acting
            if is_acting:
                return
            gaps, is_acting = gaps + 1, True
            for at, act in acts:
                if at == gaps:
                    self._act(act, chosen)
                    seen.append((self.rows, self._is_lost))
            is_acting = False

        with with_gaps(gap):
            try:
                found = self._read()
            except SourceLost:
                assert any(was_lost for _, was_lost in seen), "refused, and nothing was lost"
                return
        assert not all(was_lost for _, was_lost in seen), "read, and nobody can know the rows"
        assert found in [rows for rows, _ in seen]
        self.figures["reads beside others"] += 1

    def _act(self, act: str, chosen: int) -> None:
        match act:
            case "write":
                self.write({chosen % len(KEYS): chosen % 5 == 0}, commits=True)
            case "move":
                self.begin_move({chosen % len(KEYS): chosen % 5 == 0}, at_once=True)
            case "put back":
                self.put_back(KEYS)
            case "set main":
                self.set_main(chosen)
            case _:
                getattr(self, act.replace(" ", "_"))()

    @invariant()
    def hot_and_cold_are_what_is_committed(self) -> None:
        self.figures["steps"] += 1
        if self._is_lost:
            with pytest.raises(SourceLost):
                self._read()
            self.figures["reads refused"] += 1
        else:
            assert self._read() == self.rows
            self.figures["reads"] += 1

    @invariant()
    def the_table_holds_what_was_moved(self) -> None:
        assert self._cold_at(None) == self._now.rows

    @rule(chosen=index)
    def travel_in_time(self, chosen: int) -> None:
        heads = [one.snapshot_id for one in self._cold.snapshots() if one.snapshot_id in self.at]
        if heads:
            snapshot_id = heads[chosen % len(heads)]
            assert self._cold_at(snapshot_id) == self.at[snapshot_id].rows

    def _cold_at(self, snapshot_id: int | None) -> Rows:
        rows: list[dict[str, Any]] = self._cold.scan(snapshot_id=snapshot_id).to_arrow().to_pylist()
        assert len(rows) == len({row["n"] for row in rows}), "a row lies in the table twice"
        return {row["n"]: row["text"] for row in rows}
