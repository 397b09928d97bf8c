"""Run tokens over histories of every kind: published, expired, rolled back, cut."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import LongType, NestedField

from lakehouse_assets.commit import tokens as tokens_module
from lakehouse_assets.commit.tokens import (
    KEEP,
    RunToken,
    changed_marks,
    find_added,
    find_published,
    is_forgotten,
    is_rolled_back,
    keeps_rows_since,
    prunable,
    token_property,
)
from lakehouse_assets.errors import PublishRefused, RolledBack

NOW = 1_700_000_000_000
MOMENT = timedelta(milliseconds=1)


def run(text: str, late: timedelta = timedelta()) -> RunToken:
    """late: how long after NOW it was created."""
    return RunToken(text, datetime.fromtimestamp(NOW / 1000, UTC) + late)


def history(*snapshots: tuple[int, int | None, int], main: int | None, published: int | str = 7) -> TableMetadata:
    """snapshots: (id, parent, sequence number); main: the current one; published: what the token's property says."""
    empty = new_table_metadata(
        Schema(NestedField(1, "n", LongType())), PartitionSpec(), UNSORTED_SORT_ORDER, "file:///t"
    )
    value = token_property(run("run"), published) if isinstance(published, int) else {"lakehouse.run.run": published}
    return empty.model_copy(
        update={
            "properties": value,
            "snapshots": [
                Snapshot(snapshot_id=i, parent_snapshot_id=p, sequence_number=s, timestamp_ms=NOW, manifest_list="m")
                for i, p, s in snapshots
            ],
            "current_snapshot_id": main,
            "refs": {} if main is None else {"main": SnapshotRef(snapshot_id=main, snapshot_ref_type="branch")},
        }
    )


def test_a_run_without_a_token_is_not_published() -> None:
    assert find_published("t", history(main=None), "other run") is None


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param(history((7, None, 1), main=7), id="current"),
        pytest.param(history((7, None, 1), (8, 7, 2), (9, 8, 3), main=9), id="ancestor"),
        pytest.param(history((9, None, 3), main=9), id="expired"),
        pytest.param(history((9, 8, 3), main=9), id="expired, parents named"),
        pytest.param(history((7, None, 1), (9, 8, 3), main=9), id="kept, the way to it expired (Java)"),
        pytest.param(history((7, None, 1), (9, None, 3), main=9), id="kept, the way to it expired (PyIceberg)"),
        pytest.param(history((7, None, 1), main=9), id="kept, main's own is missing"),
    ],
)
def test_published(metadata: TableMetadata) -> None:
    assert find_published("t", metadata, "run") == 7


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param(history((6, None, 1), (7, 6, 2), main=6), id="rolled back"),
        pytest.param(history((6, None, 1), (7, 6, 2), (8, 6, 3), main=8), id="rolled back, then on"),
        pytest.param(history((6, 5, 2), (7, 6, 3), (8, 6, 4), main=8), id="rolled back, older ones expired"),
        pytest.param(history((7, None, 1), main=None), id="main removed"),
    ],
)
def test_rolled_back(metadata: TableMetadata) -> None:
    with pytest.raises(RolledBack, match="run published snapshot 7"):
        find_published("t", metadata, "run")


def test_rows_that_were_rolled_back_are_not_there() -> None:
    rolled_back = history((6, None, 1), (7, 6, 2), (8, 6, 3), main=8)
    assert find_added("t", rolled_back, "run") is None
    part = token_property(run("run.plan.part:0-0"), 8)
    assert find_added("t", rolled_back.model_copy(update={"properties": rolled_back.properties | part}), "run") == 8


@pytest.mark.parametrize(
    ("metadata", "certain"),
    [
        (history((6, None, 1), (7, 6, 2), (8, 6, 3), main=8), True),
        (history((7, 6, 2), (8, 7, 3), main=8), False),
        (history((7, 6, 2), (9, 8, 4), main=9), False),
        (history((9, 8, 4), main=9), False),
    ],
    ids=["rolled back", "in its history", "what is between them expired", "it expired"],
)
def test_only_what_is_certain_counts_as_rolled_back(metadata: TableMetadata, certain: bool) -> None:
    assert is_rolled_back(metadata, 7) is certain


MARKED = f"7@{NOW}/rolled-back"


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param(history((9, None, 3), main=9, published=MARKED), id="expired"),
        pytest.param(history((7, None, 1), (9, 8, 3), main=9, published=MARKED), id="kept, the way to it expired"),
        pytest.param(history((9, None, 3), main=9, published=MARKED + ":0-2_5-5"), id="a part of a run"),
    ],
)
def test_a_mark_tells_what_history_has_forgotten(metadata: TableMetadata) -> None:
    with pytest.raises(RolledBack, match="run published snapshot 7"):
        find_published("t", metadata, "run")


def test_a_mark_does_not_count_where_the_table_was_rolled_forward_again() -> None:
    assert find_published("t", history((7, None, 1), (8, 7, 2), main=8, published=MARKED), "run") == 7


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(((6, None, 1), (7, 6, 2), (8, 6, 3)), ((6, None, 1), (8, 6, 3)), id="the run's own snapshot"),
        pytest.param(((6, None, 1), (7, 6, 2), (8, 6, 3)), ((7, 6, 2), (8, 6, 3)), id="the common ancestor (Java)"),
        pytest.param(
            ((6, None, 1), (7, 6, 2), (8, 6, 3)), ((7, None, 2), (8, None, 3)), id="the common ancestor (PyIceberg)"
        ),
    ],
)
def test_a_run_that_was_rolled_back_is_marked_before_the_proof_is_gone(
    before: list[tuple[int, int, int]], after: list[tuple[int, int, int]]
) -> None:
    then, now = history(*before, main=8), history(*after, main=8)
    assert find_published("t", now, "run") == 7, "the naive way: rolled-back rows count as published"
    assert changed_marks(then, now) == {"lakehouse.run.run": MARKED}
    with pytest.raises(RolledBack):
        find_published("t", history(*after, main=8, published=MARKED), "run")


def test_a_mark_goes_when_what_was_rolled_forward_again_expires() -> None:
    then = history((7, None, 1), (8, 7, 2), main=8, published=MARKED)
    now = history((8, 7, 2), main=8, published=MARKED)
    assert changed_marks(then, now) == {"lakehouse.run.run": f"7@{NOW}"}


def test_nothing_is_marked_while_history_tells() -> None:
    rolled_back = history((6, None, 1), (7, 6, 2), (8, 6, 3), main=8)
    assert changed_marks(rolled_back, rolled_back) == {}
    published = history((6, None, 1), (7, 6, 2), (8, 7, 3), main=8)
    assert changed_marks(published, history((8, 7, 3), main=8)) == {}


def test_a_mark_keeps_what_a_part_of_a_run_stands_for() -> None:
    then = history((6, None, 1), (7, 6, 2), (8, 6, 3), main=8, published=f"7@{NOW}:0-2_5-5")
    now = history((8, 6, 3), main=8, published=f"7@{NOW}:0-2_5-5")
    assert changed_marks(then, now) == {"lakehouse.run.run": f"{MARKED}:0-2_5-5"}


def test_a_marked_token_ages_as_others_do(few: None) -> None:
    marked = {"lakehouse.run.marked": f"1@{run('old', -KEEP - MOMENT).created_ms}/rolled-back"}
    assert prunable(kept(run("young", -KEEP), run("now"), **marked), run("new")) == ["lakehouse.run.marked"]


def test_a_property_that_cannot_be_read_is_reported() -> None:
    with pytest.raises(PublishRefused, match="'soon', expected <snapshot id>@<epoch ms>"):
        find_published("t", history(main=None, published="soon"), "run")


def kept(*tokens: RunToken, **others: str) -> TableMetadata:
    properties = {name: value for n, token in enumerate(tokens) for name, value in token_property(token, n).items()}
    return history(main=None).model_copy(update={"properties": properties | others})


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two only it is kept whatever their age."""
    monkeypatch.setattr(tokens_module, "NEWEST", 2)


def test_only_tokens_of_another_month_are_outdated(few: None) -> None:
    metadata = kept(
        run("old", -KEEP - MOMENT), run("young", -KEEP), run("now"), **{"lakehouse.run.spoilt": "soon", "owner": "1@1"}
    )
    assert prunable(metadata, run("new")) == ["lakehouse.run.old", "lakehouse.run.spoilt"]
    assert prunable(metadata, run("of before", -MOMENT)) == ["lakehouse.run.spoilt"]


def test_one_clock_that_is_ahead_prunes_nothing() -> None:
    ahead = timedelta(days=40)
    live = kept(run("live", -timedelta(days=1)), run("now"))
    assert prunable(live, run("ahead", ahead)) == []
    assert prunable(kept(run("live"), run("ahead", ahead)), run("new")) == []


def test_some_tokens_are_kept_whatever_the_clocks(few: None) -> None:
    of_before = [run("live"), run("older", -KEEP - MOMENT), run("oldest", -2 * KEEP)]
    ahead = [run("ahead", timedelta(days=40))]
    assert prunable(kept(*of_before, *ahead), run("ahead too", timedelta(days=40))) == [
        "lakehouse.run.older",
        "lakehouse.run.oldest",
    ]
    assert prunable(kept(*of_before), run("new")) == ["lakehouse.run.oldest"]


@pytest.mark.parametrize("clock", range(5))
def test_a_token_that_was_pruned_is_known_to_be_forgotten_whatever_the_clocks(few: None, clock: int) -> None:
    """Runs created at random moments publish in a random order; nothing but their tokens is kept."""
    dice = random.Random(clock)
    tokens = [run(str(n), timedelta(days=dice.uniform(-100, 100))) for n in range(40)]
    metadata, pruned = kept(), 0
    for n, token in enumerate(tokens):
        names = prunable(metadata, token)
        properties = {name: value for name, value in metadata.properties.items() if name not in names}
        metadata = metadata.model_copy(update={"properties": properties | token_property(token, n)})
        gone = [t for t in tokens[: n + 1] if f"lakehouse.run.{t.text}" not in metadata.properties]
        assert all(is_forgotten(metadata, t) for t in gone)
        pruned = len(gone)
    assert pruned


def test_a_token_that_may_still_be_there_is_not_taken_for_forgotten(few: None) -> None:
    assert not is_forgotten(kept(), run("first", -2 * KEEP))
    assert not is_forgotten(kept(run("now")), run("old", -2 * KEEP)), "one clock alone proves nothing"
    assert not is_forgotten(kept(run("a"), run("b")), run("old", -KEEP))
    assert is_forgotten(kept(run("a"), run("b")), run("old", -KEEP - MOMENT))
    old = run("old", -2 * KEEP)
    assert not is_forgotten(kept(run("a"), run("b"), old), old), "its property is there"


@pytest.mark.parametrize(
    ("since", "operations", "kept"),
    [
        (7, [], True),
        (7, [Operation.APPEND, Operation.REPLACE], True),
        (7, [Operation.APPEND, Operation.DELETE, Operation.APPEND], False),
        (7, [Operation.OVERWRITE], False),
        (7, [None], False),
        (6, [Operation.APPEND], False),
    ],
    ids=["nothing", "adds and rewrites", "deletes", "overwrites", "an untold operation", "expired in between"],
)
def test_rows_are_kept_where_all_commits_since_add_or_rewrite(
    since: int, operations: list[Operation | None], kept: bool
) -> None:
    later = [(8 + n, 7 + n, 8 + n) for n in range(len(operations))]
    cut = history((7, 6, 7), *later, main=7 + len(later))
    summaries = [None, *(operation and Summary(operation) for operation in operations)]
    told = [snap.model_copy(update={"summary": of}) for snap, of in zip(cut.snapshots, summaries, strict=True)]
    assert keeps_rows_since(cut.model_copy(update={"snapshots": told}), since) is kept
