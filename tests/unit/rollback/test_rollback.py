"""Which snapshot a person means, what a rollback undoes, and that its commit requires what was shown."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, cast

import dagster as dg
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table.refs import MAIN_BRANCH

from lakehouse_assets.commit.tokens import PREFIX, ROLLED_BACK
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.errors import NoSuchRelease, RollbackRefused
from lakehouse_assets.rollback.rollback import ROLLED_BACK_TO, Rollback, events_after, roll_back, snapshot_of
from lakehouse_assets.time_text import shown_time
from tests.support.histories import DAY, NOW, History
from tests.support.tables import DAYS, numbers

NO_CATALOG = cast("Catalog", None)
"""Only releases are asked of it."""


def rollback(history: History, to: int) -> Rollback:
    target = history.metadata.snapshot_by_id(to)
    assert target is not None
    return Rollback(history.metadata, target)


def at(ago: float) -> str:
    return datetime.fromtimestamp((NOW - ago * DAY) / 1000, UTC).isoformat()


def traced(ago: float) -> str:
    """A time as `lakehouse trace` prints it."""
    return shown_time(datetime.fromtimestamp((NOW - ago * DAY) / 1000, UTC))


def test_a_rollback_undoes_what_lies_behind_its_target_and_one_forward_restores_it() -> None:
    history = History()
    first, second, third = history.commits(3)
    back = rollback(history, first)
    assert [one.snapshot_id for one in back.undone] == [third, second]
    assert back.restored == []
    assert back.elsewhere == {second, third}
    assert back.after.current_snapshot() == back.target

    history.point(MAIN_BRANCH, first)
    other = history.commit()
    forward = rollback(history, third)
    assert [one.snapshot_id for one in forward.undone] == [other]
    assert [one.snapshot_id for one in forward.restored] == [third, second]


def test_a_snapshot_is_named_by_its_id_or_by_a_time() -> None:
    history = History()
    first, second = history.commit(3), history.commit(1)
    metadata = history.metadata

    def named(to: str) -> int:
        return snapshot_of("demo.t", metadata, to, NO_CATALOG).snapshot_id

    assert named(str(first)) == first
    assert [named(at(3)), named(at(2)), named(at(1)), named(at(0))] == [first, first, second, second]
    assert [named(traced(3)), named(traced(1))] == [first, second]
    history.point(MAIN_BRANCH, first, ago=0.5)  # rolled back by somebody, then time travel finds that
    metadata = history.metadata
    assert [named(at(0.7)), named(at(0.2))] == [second, first]


@pytest.mark.parametrize(
    ("to", "problem"),
    [
        ("77", "it has no snapshot 77; the oldest one kept is from 2023-11-"),
        (at(9), "it has no snapshot 2023-11-05"),
        ("yesterday", r"'yesterday' is not a snapshot's id, a time such as 2026-01-31T08:00, or release:<number>"),
        ("release:next", "'release:next' is not a snapshot's id"),
        ("2", "snapshot 2 was never on main: it belongs to another branch"),
    ],
)
def test_what_names_no_snapshot_of_main_is_refused(to: str, problem: str) -> None:
    history = History()
    history.commit(3)
    history.commit(2, branch="audit")
    with pytest.raises(RollbackRefused, match=rf"table demo\.t: {problem}"):
        snapshot_of("demo.t", history.metadata, to, NO_CATALOG)


def test_a_release_that_is_not_there_is_refused(settings: Settings) -> None:
    history = History()
    history.commit()
    with pytest.raises(NoSuchRelease, match="demo has no releases"):
        snapshot_of("demo.t", history.metadata, "release:1", load_lake(settings))


@pytest.fixture
def written(settings: Settings) -> tuple[Catalog, list[int]]:
    """A table of three appended rows, and its snapshots."""
    import pyarrow as pa

    lake = load_lake(settings)
    lake.create_namespace("demo")
    table = lake.create_table("demo.t", pa.schema([("n", pa.int64())]))
    for n in range(3):
        table.append(pa.table({"n": [n]}))
    return lake, [snapshot.snapshot_id for snapshot in table.metadata.snapshots]


def test_the_commit_keeps_the_branchs_retention_and_is_done_once(written: tuple[Catalog, list[int]]) -> None:
    lake, (first, _, third) = written
    table: Any = lake.load_table("demo.t")
    with table.manage_snapshots() as snapshots:
        snapshots.create_branch(third, MAIN_BRANCH, min_snapshots_to_keep=7)
    logged = len(lake.load_table("demo.t").metadata.snapshot_log)
    for _again in range(2):
        roll_back(lake, "demo.t", first, third)
        metadata = lake.load_table("demo.t").metadata
        assert metadata.current_snapshot_id == first
        assert metadata.refs[MAIN_BRANCH].min_snapshots_to_keep == 7
    assert len(metadata.snapshot_log) == logged + 1
    assert lake.load_table("demo.t").scan().to_arrow()["n"].to_pylist() == [0]


def test_a_commit_in_between_is_not_undone_unseen(
    written: tuple[Catalog, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa

    lake, (first, _, third) = written
    commit = lake.commit_table

    def later(*arguments: Any) -> Any:
        monkeypatch.setattr(lake, "commit_table", commit)
        lake.load_table("demo.t").append(pa.table({"n": [3]}))
        return commit(*arguments)

    monkeypatch.setattr(lake, "commit_table", later)
    with pytest.raises(RollbackRefused, match=f"expected main at snapshot {third}"):
        roll_back(lake, "demo.t", first, third)
    assert lake.load_table("demo.t").scan().to_arrow().num_rows == 4


NUMBERS = numbers()
ONE, TWO = DAYS.get_partition_keys()[:2]


@pytest.fixture
def log() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def made(log: dg.DagsterInstance, partition: str | None, snapshot: int, **more: str) -> None:
    about = {"snapshot_id": str(snapshot), **more}
    log.report_runless_asset_event(dg.AssetMaterialization(NUMBERS.key, partition=partition, metadata=about))


def told(log: dg.DagsterInstance, changed: set[str | None], elsewhere: set[int], target: int) -> dict[str | None, str]:
    events = events_after(log, NUMBERS, changed, elsewhere, target)
    return {event.partition: str(event.metadata["snapshot_id"].value) for event in events}


def test_rows_that_an_earlier_rollback_has_undone_are_not_told_again_once_their_snapshot_has_expired(
    log: dg.DagsterInstance,
) -> None:
    history = History()
    first = history.commit()
    bad = 77
    history.properties[f"{PREFIX}bad"] = f"{bad}@{NOW}{ROLLED_BACK}"
    made(log, ONE, first)
    made(log, ONE, bad)
    made(log, ONE, first, **{ROLLED_BACK_TO: str(first)})
    worse = history.commit()
    made(log, ONE, worse)
    back = rollback(history, first)
    assert back.elsewhere == {bad, worse}
    assert told(log, {ONE}, back.elsewhere, first) == {ONE: str(first)}


def test_a_rollback_that_was_undone_and_died_behind_its_commit_is_told_the_next_time(log: dg.DagsterInstance) -> None:
    made(log, ONE, 1)
    made(log, ONE, 2)
    made(log, ONE, 1, **{ROLLED_BACK_TO: "1"})
    assert told(log, set(), set(), 2) == {ONE: "2"}
    made(log, ONE, 2, **{ROLLED_BACK_TO: "2"})
    assert told(log, set(), set(), 2) == {}


def test_partitions_of_another_time_are_not_told(log: dg.DagsterInstance) -> None:
    """The table had none, or others."""
    made(log, None, 1)
    made(log, "gone", 2)
    made(log, ONE, 2)
    made(log, ONE, 3)
    assert told(log, {None, "gone", ONE}, {3}, 2) == {ONE: "2"}
