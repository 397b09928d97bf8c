"""A look reads what no earlier look has read, and whatever happens to what is kept, the health is the same.
On other catalogs and with Spark's manifests: tests/integration/test_health_catalogs.py."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from lakehouse_assets.maintenance.health import look as looking
from lakehouse_assets.maintenance.health.look import TimeIsUp, look
from lakehouse_assets.maintenance.health.summaries import SummaryCache
from tests.support.forks import SCHEMA, SPEC, CountingIO
from tests.support.manifests import DELETED, POSITIONS, Crafted, Listed, sqlite_catalog

COUNTING = {"py-io-impl": "tests.support.forks.CountingIO"}


def days(*numbers: int, size: int = 100) -> list[Listed]:
    return [Listed((number,), size=size) for number in numbers]


@pytest.fixture
def crafted(tmp_path: Path) -> Crafted:
    return Crafted.create(sqlite_catalog(tmp_path, **COUNTING), SCHEMA, SPEC)


@pytest.fixture
def cache(tmp_path: Path) -> SummaryCache:
    return SummaryCache(PyArrowFileIO(), f"{tmp_path}/staging/health")


@pytest.fixture
def reads() -> Iterator[Callable[[], int]]:
    """How many manifests were read since it was last asked."""
    CountingIO.manifests_read.clear()

    def since() -> int:
        count = len(CountingIO.manifests_read)
        CountingIO.manifests_read.clear()
        return count

    yield since
    CountingIO.manifests_read.clear()


def kept(cache: SummaryCache, table: Table) -> Path:
    return Path(cache.location(table.metadata.table_uuid))


def test_a_table_without_snapshots_is_empty_and_well(crafted: Crafted, cache: SummaryCache) -> None:
    health = look(crafted.table, cache)
    assert (health.partitions, health.manifests, health.snapshots) == ((), 0, 0)
    assert health.metadata_size == Path(crafted.table.metadata_location.removeprefix("file://")).stat().st_size
    assert not kept(cache, crafted.table).exists()


def test_only_new_manifests_are_read(crafted: Crafted, cache: SummaryCache, reads: Callable[[], int]) -> None:
    look(crafted.list(*[days(n) for n in range(20)]), cache)
    reads()
    look(crafted.table, cache)
    assert reads() == 0
    table = crafted.list(days(3), days(30, 31), keep=True)
    reads()
    health = look(table, cache)
    assert (health.snapshots, health.expirable) == (len(table.metadata.snapshots), 0), "they are young"
    assert reads() == 2
    assert {p.name: p.files for p in health.partitions if p.values[0] in (2, 3, 30)} == {
        "day=1970-01-03": 1,
        "day=1970-01-04": 2,
        "day=1970-01-31": 1,
    }


def test_what_is_kept_of_manifests_that_are_gone_is_dropped(crafted: Crafted, cache: SummaryCache) -> None:
    look(crafted.list(*[days(n) for n in range(9)]), cache)
    table = crafted.list(days(1), days(2))
    health = look(table, cache)
    assert [partition.name for partition in health.partitions] == ["day=1970-01-02", "day=1970-01-03"]
    assert len(cache.read(table.metadata.table_uuid, health.limits)) == 2


def test_manifests_that_only_list_deletions_are_not_read(
    crafted: Crafted, cache: SummaryCache, reads: Callable[[], int]
) -> None:
    table = crafted.list(days(1), [Listed((2,), status=DELETED)], [Listed((1,), content=POSITIONS)])
    reads()
    health = look(table, cache)
    assert (health.data_manifests, health.delete_manifests, health.empty_manifests) == (1, 1, 1)
    assert reads() == 2


def nothing(_: Path) -> None:
    pass


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def foreign(path: Path) -> None:
    path.write_bytes(b"PAR1 and so on")


def unreadable(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("harm", [nothing, Path.unlink, torn, foreign, unreadable])
def test_the_health_is_the_same_whatever_happens_to_what_is_kept(
    crafted: Crafted, cache: SummaryCache, harm: Callable[[Path], None]
) -> None:
    crafted.list(*[days(n, n + 1, size=2**n) for n in range(30)], [Listed((1,), content=POSITIONS)])
    first = look(crafted.table, cache)
    harm(kept(cache, crafted.table))
    assert look(crafted.table, cache) == first
    assert look(crafted.table, cache) == first


def test_a_place_that_can_not_be_written_costs_time_only(crafted: Crafted, cache: SummaryCache, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    nowhere = SummaryCache(PyArrowFileIO(), f"{tmp_path}/file/health")
    table = crafted.list(days(1), days(2))
    assert look(table, nowhere) == look(table, nowhere) == look(table, cache)


def test_nothing_is_written_under_the_table(crafted: Crafted, cache: SummaryCache) -> None:
    table = crafted.list(days(1))
    folder = Path(table.location().removeprefix("file://"))
    before = sorted(folder.rglob("*"))
    look(table, cache)
    assert sorted(folder.rglob("*")) == before


def test_another_target_size_counts_anew(crafted: Crafted, cache: SummaryCache) -> None:
    table = crafted.list(days(1, size=1000))
    assert look(table, cache).total("fragments") == 1
    with table.transaction() as transaction:
        transaction.set_properties({"write.target-file-size-bytes": "1400"})
    assert (look(table.refresh(), cache).total("fragments"), look(table, cache).total("undersized")) == (0, 1)


def test_a_table_created_again_has_nothing_of_the_old_one(crafted: Crafted, cache: SummaryCache) -> None:
    look(crafted.list(days(1)), cache)
    crafted.table.catalog.drop_table("demo.crafted")
    again = Crafted.create(crafted.table.catalog, SCHEMA, SPEC)
    assert look(again.table, cache).partitions == ()
    assert [p.name for p in look(again.list(days(5)), cache).partitions] == ["day=1970-01-06"]


def test_a_look_without_time_ends_and_the_next_goes_on(
    crafted: Crafted, cache: SummaryCache, reads: Callable[[], int]
) -> None:
    table = crafted.list(*[days(n) for n in range(60)])
    with pytest.raises(TimeIsUp):
        look(table, cache, deadline=time.monotonic() - 1)
    left = len(cache.read(table.metadata.table_uuid, looking.size_limits(table.metadata)))
    assert left == 1
    reads()
    health = look(table, cache)
    assert (reads(), health.total("files")) == (59, 60)
    look(table, cache, deadline=time.monotonic() - 1)  # nothing new: no time is needed


def test_a_manifest_that_is_gone_is_an_error_and_what_was_read_is_kept(
    crafted: Crafted, cache: SummaryCache, tmp_path: Path
) -> None:
    table = crafted.list(*[days(n) for n in range(5)])
    snapshot = table.current_snapshot()
    assert snapshot
    last = Path(snapshot.manifests(table.io)[-1].manifest_path.removeprefix("file://"))
    shutil.move(last, tmp_path / "away")
    with pytest.raises(FileNotFoundError, match=os.path.basename(last)):
        look(table, cache)
    shutil.move(tmp_path / "away", last)
    assert len(cache.read(table.metadata.table_uuid, looking.size_limits(table.metadata))) == 4
    assert look(table, cache).total("files") == 5
