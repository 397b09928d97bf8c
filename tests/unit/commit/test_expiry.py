"""Which snapshots expire, rule by rule, and over random histories against a simple model of the rules."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import update_table_metadata

from lakehouse_assets.commit.expire import ExpiryPlan, ExpiryPolicy, Why, plan_expiry, without_snapshots
from lakehouse_assets.commit.positions import POSITIONS, READER, TRACKED_INPUTS, positions_of
from lakehouse_assets.commit.tokens import find_published
from lakehouse_assets.errors import MaintenanceRefused, RolledBack
from tests.support.histories import DAY, NOW, History, current_at

TAG = SnapshotRefType.TAG
FIVE_DAYS = ExpiryPolicy(minimum=1)
"""Iceberg's defaults."""


def plan(history: History, policy: ExpiryPolicy = FIVE_DAYS, **options: object) -> ExpiryPlan:
    return plan_expiry("t", history.metadata, policy, NOW, **options)


def expired(history: History, policy: ExpiryPolicy = FIVE_DAYS, **options: object) -> list[int]:
    return list(plan(history, policy, **options).expiry.snapshot_ids)


def test_what_is_older_than_the_age_expires_oldest_first() -> None:
    history = History()
    history.commits(8)  # 7 to 0 days old
    found = plan(history)
    assert found.expiry.snapshot_ids == (1, 2)
    assert found.kept[8] == (Why.HEAD,)
    assert found.kept[3] == (Why.YOUNG,), "just five days old"
    assert found.changes_ms == NOW + 1
    assert plan(history, ExpiryPolicy(minimum=1, age=timedelta(0))).changes_ms == NOW + 1, "of the head"


def test_a_minimum_is_kept_whatever_its_age() -> None:
    history = History()
    history.commits(8, youngest=400)
    assert expired(history) == [1, 2, 3, 4, 5, 6, 7]
    found = plan(history, ExpiryPolicy(minimum=3))
    assert found.expiry.snapshot_ids == (1, 2, 3, 4, 5)
    assert found.kept[6] == (Why.NEWEST,)


def test_no_more_than_the_maximum_is_kept_whatever_its_age() -> None:
    history = History()
    history.commits(20, apart=0.01)
    found = plan(history, ExpiryPolicy(minimum=2, maximum=5))
    assert found.expiry.snapshot_ids == tuple(range(1, 16))
    assert len(found.kept) == 5
    history.snapshots.reverse()  # nothing says that metadata lists them in order
    assert plan(history, ExpiryPolicy(minimum=2, maximum=5)) == found


def test_the_maximum_spares_what_is_kept_for_another_reason_than_its_age() -> None:
    history = History()
    ids = history.commits(20, apart=0.01)
    history.tag("release", ids[3])
    found = plan(history, ExpiryPolicy(minimum=2, maximum=2), protected=[ids[7]])
    assert sorted(found.kept) == [ids[3], ids[7], ids[18], ids[19]]


def test_a_table_without_snapshots_has_nothing_to_expire() -> None:
    assert plan(History()).expiry.is_empty


# The table's properties, and what refs say


def test_a_tables_properties_win_over_the_policy() -> None:
    history = History()
    history.commits(8)
    history.properties = {"history.expire.max-snapshot-age-ms": str(2 * DAY)}
    assert expired(history) == [1, 2, 3, 4, 5]
    history.properties |= {"history.expire.min-snapshots-to-keep": "6"}
    assert expired(history) == [1, 2]


@pytest.mark.parametrize("name", ["max-ref-age-ms", "max-snapshot-age-ms"])
def test_javas_longest_age_is_for_ever(name: str) -> None:
    history, longest = History(), 2**63 - 1
    ids = history.commits(8, youngest=400)
    history.tag("release", ids[0], max_ref_age_ms=longest)
    history.properties[f"history.expire.{name}"] = str(longest)
    found = plan(history)
    assert found.expiry.refs == ()
    assert list(found.expiry.snapshot_ids) == ([] if name == "max-snapshot-age-ms" else ids[1:-1])


def test_a_branch_s_own_retention_wins_over_the_tables_properties() -> None:
    history = History()
    history.commits(8)
    history.properties = {"history.expire.max-snapshot-age-ms": "1", "history.expire.min-snapshots-to-keep": "1"}
    history.point("main", 8, max_snapshot_age_ms=3 * DAY)
    assert expired(history) == [1, 2, 3, 4]
    history.point("main", 8, max_snapshot_age_ms=1, min_snapshots_to_keep=7)
    assert expired(history) == [1]


def test_a_property_that_is_no_number_is_refused_by_its_name() -> None:
    history = History(properties={"history.expire.max-snapshot-age-ms": "5 days"})
    history.commits(2)
    with pytest.raises(MaintenanceRefused, match=r"table t: property history\.expire\.max-snapshot-age-ms is '5 days'"):
        plan(history)


def test_a_table_that_shares_its_files_is_refused() -> None:
    """As Iceberg's own procedures do; a fork base is such a table."""
    history = History(properties={"gc.enabled": "false"})
    history.commits(2)
    with pytest.raises(MaintenanceRefused, match=r"table t: gc\.enabled is false"):
        plan(history)


def test_another_format_version_is_refused() -> None:
    history = History()
    history.commits(2)
    metadata = history.metadata.model_copy(update={"format_version": 3})
    with pytest.raises(MaintenanceRefused, match="its format version is 3, expected 2"):
        plan_expiry("t", metadata, FIVE_DAYS, NOW)


# Branches, tags


def test_a_tag_keeps_its_snapshot_and_no_other_until_it_is_too_old() -> None:
    history = History()
    history.commits(20)  # 19 to 0 days old
    history.tag("for ever", 2)
    history.tag("a week", 5, 7 * DAY)  # 15 days old
    history.tag("a month", 6, 30 * DAY)
    found = plan(history)
    assert found.expiry.refs == ("a week",)
    assert found.kept[2] == (Why.TAG,)
    assert found.kept[6] == (Why.TAG,)
    assert found.expiry.snapshot_ids == (1, 3, 4, 5, *range(7, 15))


def test_the_tables_property_ends_all_refs_but_main() -> None:
    history = History(properties={"history.expire.max-ref-age-ms": str(10 * DAY)})
    history.commits(2, youngest=12)  # a reader may be behind for 14 days by the policy
    history.tag("release", 1)
    history.point("audit", 1)
    history.tag("lakehouse.reader.behind", 1)
    found = plan(history)
    assert sorted(found.expiry.refs) == ["audit", "lakehouse.reader.behind", "release"]
    assert sorted(found.kept) == [2]


def test_a_branch_keeps_by_its_own_ages_and_common_ancestors_stay_as_long_as_one_keeps_them() -> None:
    history = History()
    history.commits(4, youngest=20)  # 1 to 4
    history.point("audit", 4, min_snapshots_to_keep=3)
    history.commit(10, branch="audit")  # 5
    history.commit(9)  # 6, on main
    found = plan(history)
    assert found.expiry.snapshot_ids == (1, 2)
    assert found.kept[6] == (Why.HEAD,)
    assert found.kept[4] == (Why.NEWEST,)


def test_what_was_rolled_back_expires_by_its_age() -> None:
    history = History()
    history.commit(30)
    old, young = history.commit(20), history.commit(1)
    history.point("main", 1)
    found = plan(history)
    assert found.expiry.snapshot_ids == (old,)
    assert found.kept[young] == (Why.YOUNG,)


def test_what_was_on_a_branch_that_ends_expires_by_its_age() -> None:
    history = History()
    history.commits(2)
    history.point("audit", 1, max_ref_age_ms=1)
    old, young = history.commit(20, branch="audit"), history.commit(2, branch="audit")
    found = plan(history)
    assert found.expiry.refs == ("audit",)
    assert found.expiry.snapshot_ids == (old,)
    assert found.kept[young] == (Why.YOUNG,)


def test_a_clock_that_was_wrong_once_costs_no_young_snapshot() -> None:
    history = History()
    for ago in (40, 3, 100, 1):
        history.commit(ago)
    assert expired(history) == [1]


def test_the_base_of_a_fork_in_flight_stays() -> None:
    history = History()
    history.commits(4, youngest=20)
    found = plan(history, protected=[2, 99])
    assert found.expiry.snapshot_ids == (1, 3)
    assert found.kept[2] == (Why.PINNED,)


def test_a_ref_to_a_snapshot_that_is_gone_is_left_alone() -> None:
    history = History()
    history.commits(2, youngest=20)
    history.tag("torn", 99, 1)
    assert plan(history).expiry.refs == ()


# Readers


def test_a_reader_keeps_all_that_it_has_not_read() -> None:
    history = History()
    history.commits(10, youngest=6)  # 15 to 6 days old
    history.tag("lakehouse.reader.hourly", 7)
    found = plan(history)
    assert found.expiry.snapshot_ids == (1, 2, 3, 4, 5, 6)
    assert found.kept[8] == (Why.UNREAD,)
    assert found.kept[7] == (Why.TAG,)


def test_the_maximum_does_not_take_what_a_reader_has_not_read() -> None:
    history = History()
    history.commits(10)
    history.tag("lakehouse.reader.hourly", 4)
    assert expired(history, ExpiryPolicy(minimum=1, maximum=2)) == [1, 2, 3]


@pytest.mark.parametrize(("age", "ends"), [(None, True), (16 * DAY, True), (17 * DAY, False)])
def test_a_reader_is_given_up_when_it_is_behind_for_too_long(age: int | None, ends: bool) -> None:
    """As long as the first snapshot that it has not read is old: 16 and a half days."""
    history = History()
    for ago in (30, 16.5, 6):
        history.commit(ago)
    history.tag("lakehouse.reader.gone", 1, age)
    found = plan(history)
    assert found.expiry.refs == (("lakehouse.reader.gone",) if ends else ())
    assert found.expiry.snapshot_ids == ((1, 2) if ends else ())


def test_a_reader_that_has_read_all_is_never_given_up() -> None:
    """Iceberg's own rule, the age of its snapshot, would make it read all again."""
    history = History()
    history.commits(3, youngest=400)
    history.tag("lakehouse.reader.patient", 3, DAY)
    assert plan(history).expiry.refs == ()


def test_a_reader_of_what_was_rolled_back_is_as_old_as_its_snapshot() -> None:
    history = History()
    history.commit(30)
    rolled_back = history.commit(20)
    history.point("main", 1)
    history.tag("lakehouse.reader.lost", rolled_back, 21 * DAY)
    assert plan(history).expiry.refs == ()
    history.tag("lakehouse.reader.lost", rolled_back, 19 * DAY)
    assert plan(history).expiry.refs == ("lakehouse.reader.lost",)


# Any history


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Commits on up to three branches by clocks that may be a day wrong, rollbacks, tags, readers, runs, statistics."""
    history, days = History(), st.integers(0, 40)
    if draw(st.booleans()):
        history.properties |= {"history.expire.min-snapshots-to-keep": str(draw(st.integers(0, 4)))}
    if draw(st.booleans()):
        history.properties |= {"history.expire.max-snapshot-age-ms": str(draw(st.integers(0, 20)) * DAY)}
    if draw(st.booleans()):
        history.properties |= {"history.expire.max-ref-age-ms": str(draw(days) * DAY)}
    ago = 40.0
    for n in range(draw(st.integers(1, 25))):
        ago = max(0.0, ago - draw(st.integers(0, 5)))
        wrong = draw(st.sampled_from([0, 0, 0, 0, 1, -1]))
        branch = draw(st.sampled_from(["main", "main", "main", *sorted(history.refs.keys() & {"a", "b"})]))
        history.commit(ago + wrong, branch=branch, run=f"run-{n}" if branch == "main" else None)
        known = st.sampled_from([s.snapshot_id for s in history.snapshots])
        match draw(st.sampled_from(["", "", "", "rollback", "branch", "tag", "reader", "analyze"])):
            case "rollback":
                history.point("main", draw(known), ago)
            case "branch":
                optional = {
                    "min_snapshots_to_keep": draw(st.none() | st.integers(1, 4)),
                    "max_snapshot_age_ms": draw(st.none() | st.integers(1, 20 * DAY)),
                    "max_ref_age_ms": draw(st.none() | st.integers(1, 40 * DAY)),
                }
                history.point(draw(st.sampled_from("ab")), draw(known), ago, **optional)
            case "tag":
                history.tag(f"tag-{n}", draw(known), draw(st.none() | st.integers(1, 40 * DAY)))
            case "reader":
                history.tag(f"lakehouse.reader.{n}", draw(known), draw(st.none() | st.integers(1, 40 * DAY)))
            case "analyze":
                history.analyze(draw(known))
    return history


policies = st.builds(
    lambda minimum, more, days: ExpiryPolicy(minimum=minimum, maximum=minimum + more, age=timedelta(days=days)),
    st.integers(1, 5),
    st.integers(0, 20),
    st.integers(0, 20),
)


def line(metadata: TableMetadata, head: int) -> list[int]:
    """A branch's snapshots, newest first."""
    parents = {s.snapshot_id: s.parent_snapshot_id for s in metadata.snapshots}
    found = []
    here: int | None = head
    while here in parents:
        found.append(here)
        here = parents[here]
    return found


def verdict(metadata: TableMetadata, name: str) -> str:
    try:
        return str(find_published("t", metadata, name.removeprefix("lakehouse.run.")))
    except RolledBack:
        return "rolled back"


def check(history: History, policy: ExpiryPolicy, protected: set[int]) -> None:
    before = history.metadata
    found = plan_expiry("t", before, policy, NOW, protected)
    after = update_table_metadata(before, found.expiry.updates())
    left, gone = {s.snapshot_id for s in after.snapshots}, set(found.expiry.snapshot_ids)

    assert left == set(found.kept)
    assert left | gone == {s.snapshot_id for s in before.snapshots}
    assert not left & gone
    assert left >= {ref.snapshot_id for ref in after.refs.values()} | (protected & {*left, *gone})
    assert before.refs.keys() - after.refs.keys() == set(found.expiry.refs)
    assert "main" in after.refs
    assert after.current_snapshot_id == before.current_snapshot_id

    minimum = int(before.properties.get("history.expire.min-snapshots-to-keep", policy.minimum))
    age = int(before.properties.get("history.expire.max-snapshot-age-ms", policy.age // timedelta(milliseconds=1)))
    old = {s.snapshot_id: NOW - s.timestamp_ms for s in before.snapshots}
    ways = {n: line(before, r.snapshot_id) for n, r in after.refs.items() if r.snapshot_ref_type is not TAG}
    named = {ref.snapshot_id for ref in after.refs.values()} | protected & old.keys()
    aged = {s for s in old if old[s] <= age and not any(s in way for way in ways.values())}
    for name, way in ways.items():
        ref = after.refs[name]
        named |= set(way[: ref.min_snapshots_to_keep or minimum])
        young = [n for n, s in enumerate(way) if old[s] <= (ref.max_snapshot_age_ms or age)]
        aged |= set(way[: max(young, default=-1) + 1])
        for reader in (r.snapshot_id for n, r in after.refs.items() if n.startswith(READER)):
            named |= set(way[: way.index(reader)]) if reader in way else set()
    assert named <= left, "heads, tags, minimum, readers, forks"
    by_age, surplus = aged - named, max(0, len(aged | named) - policy.maximum)
    assert len(by_age - left) == min(len(by_age), surplus), "nothing younger than the age goes, save by the maximum"
    assert left <= named | aged, "nothing stays without a reason"
    assert len(left) <= max(policy.maximum, len(named))

    for at in (NOW - ago + late for ago in old.values() for late in (0, DAY // 2)):
        assert current_at(after, at) in (current_at(before, at), None), "time travel finds the right one or none"
    assert {s.snapshot_id for s in [*after.statistics, *after.partition_statistics]} <= left
    runs = [name for name in before.properties if name.startswith("lakehouse.run.")]
    assert [verdict(after, name) for name in runs] == [verdict(before, name) for name in runs]
    just_before = NOW + 999 * DAY if found.changes_ms is None else found.changes_ms - 1
    assert just_before >= NOW
    assert plan_expiry("t", before, policy, just_before, protected).expiry == found.expiry, "as long as it is said"
    again = plan_expiry("t", after, policy, NOW, protected)
    assert again.expiry.is_empty or surplus, "a repetition finds nothing to do"


@settings(deadline=None, max_examples=100)
@given(histories(), policies, st.sets(st.integers(1, 30), max_size=2))
def test_any_history(history: History, policy: ExpiryPolicy, protected: set[int]) -> None:
    check(history, policy, protected)


@pytest.mark.long("Fifty times as many histories as the test before.")
@settings(deadline=None, max_examples=5_000)
@given(histories(), policies, st.sets(st.integers(1, 30), max_size=2))
def test_many_more_histories(history: History, policy: ExpiryPolicy, protected: set[int]) -> None:
    check(history, policy, protected)


def test_the_commit_that_says_how_far_inputs_were_read_is_kept() -> None:
    history = History()
    history.properties[TRACKED_INPUTS] = "a"
    first = history.commit(40, **{POSITIONS: '{"a": "1@u"}'})
    nearest = history.commit(39, **{POSITIONS: '{"a": "2@u"}'})
    others = history.commits(12, youngest=10)
    found = plan(history, FIVE_DAYS)
    assert all(Why.POSITION in found.kept[one] for one in (nearest, *others)), "these lead to it"
    assert first not in found.kept
    left = without_snapshots(history.metadata, found.expiry.snapshot_ids)
    assert positions_of(left).positions == {"a": "2@u"}
