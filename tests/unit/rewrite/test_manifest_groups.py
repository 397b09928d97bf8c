"""Which manifests are rewritten together, and into which.
That every entry stays is in test_manifest_entries.py."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.manifest import ManifestContent, ManifestFile

from lakehouse_assets.rewrite.manifest_entries import EntryDigest
from lakehouse_assets.rewrite.manifest_groups import (
    LEAST_ENTRIES,
    MOST_ENTRIES,
    Group,
    ManifestKind,
    Source,
    sort_key,
    worth_rewriting,
)

DATA = ManifestKind(0, ManifestContent.DATA, "{}")


def source(entries: dict[Any, int], kind: ManifestKind = DATA, name: str = "", sequence: int = 1) -> Source:
    """A manifest with so many entries of each partition."""
    manifest = ManifestFile.from_args(manifest_path=name or str(entries), sequence_number=sequence)
    partitions = {of if isinstance(of, tuple) else (of,): n for of, n in entries.items()}
    total = sum(partitions.values())
    return Source(manifest, kind, {"of": name}, partitions, 300 * total, EntryDigest(total, 0))


def sizes(group: Group) -> list[int]:
    return [cluster.entries for cluster in group.clusters]


def test_small_manifests_of_days_become_full_ones_of_neighbours() -> None:
    groups = worth_rewriting([source({day: 100}) for day in range(1000)])
    assert len(groups) == 50
    assert {len(group.sources) for group in groups} == {20}
    assert {tuple(sizes(group)) for group in groups} == {(MOST_ENTRIES,)}
    assert [p for group in groups for c in group.clusters for p in c.partitions] == [(day,) for day in range(1000)]


def test_manifests_of_all_partitions_become_one_for_each_range_of_partitions() -> None:
    (group,) = worth_rewriting([source(dict.fromkeys(range(100), 1), name=str(n)) for n in range(1000)])
    assert len(group.sources) == 1000
    assert [cluster.manifests for cluster in group.clusters] == [1] * 50
    assert [cluster.partitions for cluster in group.clusters] == [((2 * n,), (2 * n + 1,)) for n in range(50)]


def test_good_manifests_are_left_alone() -> None:
    full = [source({day: MOST_ENTRIES}) for day in range(5)]
    assert not worth_rewriting(full)
    assert not worth_rewriting([source({0: 10})])
    assert not worth_rewriting([source({0: 1500}, name="a"), source({0: 1500}, name="b")]), "as many would be written"
    assert not worth_rewriting([])


def test_few_new_manifests_beside_good_ones_are_rewritten_alone() -> None:
    full, new = [source({day: MOST_ENTRIES}) for day in range(5)], [source({5: 5}, name=str(n)) for n in range(24)]
    (group,) = worth_rewriting([*full, *new])
    assert set(map(id, group.sources)) == set(map(id, new))
    assert sizes(group) == [120]


def test_few_manifests_that_each_list_all_partitions_are_worth_it() -> None:
    """As many as before, but one is read for a partition, not all ten."""
    (group,) = worth_rewriting([source(dict.fromkeys(range(100), 20), name=str(n)) for n in range(10)])
    assert sizes(group) == [MOST_ENTRIES] * 10


def test_a_large_manifest_of_many_partitions_is_split() -> None:
    """Of one partition it is not: all would be read."""
    (group,) = worth_rewriting([source(dict.fromkeys(range(100), 500))])
    assert sizes(group) == [MOST_ENTRIES] * 25
    assert not worth_rewriting([source({(): 50_000})])


def test_a_partition_with_more_entries_than_a_manifest_takes_becomes_several() -> None:
    (group,) = worth_rewriting([source({0: 100}, name=str(n)) for n in range(95)])
    (cluster,) = group.clusters
    assert (cluster.entries, cluster.manifests) == (9500, 5)


def test_only_what_a_manifest_can_hold_is_put_together() -> None:
    others = [
        ManifestKind(1, ManifestContent.DATA, "{}"),
        ManifestKind(0, ManifestContent.DELETES, "{}"),
        ManifestKind(0, DATA.content, "[]"),
    ]
    kinds = [DATA, *others]
    groups = worth_rewriting([source({0: 1}, kind, str(n)) for n in range(4) for kind in kinds])
    assert {group.kind for group in groups} == set(kinds)
    assert all({s.kind for s in group.sources} == {group.kind} and len(group.sources) == 4 for group in groups)


def test_the_header_is_that_of_the_newest_manifest() -> None:
    (group,) = worth_rewriting([source({0: 1}, name=str(n), sequence=n) for n in (3, 7, 5)])
    assert group.meta == {"of": "7"}


def test_a_manifest_without_live_entries_is_in_no_group() -> None:
    (group,) = worth_rewriting([source({}), source({0: 1}, name="a"), source({0: 1}, name="b")])
    assert len(group.sources) == 2


@pytest.mark.parametrize("values", [[None, 1, 2], [None, "", "a"], [None, -math.inf, 1.5, math.inf, math.nan]])
def test_partitions_are_in_the_order_of_their_values_nulls_first_and_nan_last(values: list[Any]) -> None:
    pairs = [(one, other) for one in values for other in values]
    backwards = list(reversed(pairs))
    assert sorted(backwards, key=sort_key) == pairs


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.dictionaries(st.integers(0, 30) | st.none(), st.integers(1, 900), min_size=1, max_size=6),
        min_size=1,
        max_size=30,
    )
)
def test_groups_keep_every_entry_and_never_share_a_partition(manifests: list[dict[int | None, int]]) -> None:
    sources = [source(entries, name=str(n)) for n, entries in enumerate(manifests)]
    groups = worth_rewriting(sources)
    assert len({s.manifest.manifest_path for g in groups for s in g.sources}) == sum(len(g.sources) for g in groups)
    listed = [partition for g in groups for cluster in g.clusters for partition in cluster.partitions]
    assert len(listed) == len(set(listed))
    assert listed == sorted(listed, key=sort_key)
    for group in groups:
        assert sum(sizes(group)) == group.entries == sum(s.digest.entries for s in group.sources)
        written = [(c.entries, c.manifests) for c in group.clusters]
        assert all(entries / manifests <= MOST_ENTRIES for entries, manifests in written)
        assert all(entries >= LEAST_ENTRIES for entries, _ in written[:-1])
        others = [s for s in sources if s.kind == group.kind and s not in group.sources]
        assert not any(set(s.entries) & {p for c in group.clusters for p in c.partitions} for s in others)
