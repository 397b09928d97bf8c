"""Passes that are killed, or whose storage fails, at each of their steps: the next pass goes on, and nothing is lost.
A pass that nobody disturbs is in test_collect.py; deaths within the trash are in its own tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lakehouse_assets.errors import StorageRefused
from lakehouse_assets.maintenance.collect import collect
from lakehouse_assets.maintenance.collect.needed import Chain
from lakehouse_assets.maintenance.collect.seen import TableListing
from lakehouse_assets.maintenance.collect.trash import Trash, TrashSelection
from lakehouse_assets.storage.place import place_of
from tests.support.collected import DAY_MS, TestSite, aged, local_site, put
from tests.support.forks import Daily, daily_rows
from tests.support.lakes import live_files, path_of

DAY = "2024-01-01"
STEPS = {
    "list": (TableListing, "list_all"),
    "read": (TableListing, "read_all"),
    "judge": (collect._Pass, "_judge"),
    "purge": (collect._Pass, "_purge"),
    "mark": (collect._Pass, "_mark"),
    "trash": (collect._Pass, "_trash"),
    "note": (collect, "_note"),
}
"""The steps of a pass in their order: where each is, and its name there."""
TOKEN = "0b6f3f0e"


@contextmanager
def _dying(at: str) -> Iterator[None]:
    """This process is killed when the step begins, or has moved its first batch of files (``moved``)."""
    put_away = Trash.put

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def deadly_put(self: Trash, *arguments: object) -> None:
        put_away(self, *arguments)  # type: ignore[arg-type]
        die()

    if at == "moved":
        Trash.put = deadly_put  # type: ignore[method-assign, assignment]
    else:
        setattr(*STEPS[at], die)
    yield


def in_a_child(work: Callable[[], object]) -> int:
    """The signal that ended a child which did the work; 0 if it lived."""
    if (pid := os.fork()) == 0:
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def lake(folder: Path) -> tuple[TestSite, Daily, set[Path]]:
    """A table, and what nobody needs: orphans, and what a dead run left."""
    site = local_site(folder)
    table = Daily.create(site.catalog)
    table.append(daily_rows(DAY, each=1000))
    for path in live_files(table.table):
        aged(path, 60)
    root = path_of(table.table.location())
    orphans = {put(root / "data" / f"{n}.parquet") for n in range(5)}
    before = {path for path in root.rglob("*") if path.is_file()}
    site.runs[TOKEN] = Chain(site.now_ms() - 20 * DAY_MS, unfinished=False, succeeded=False)
    receipt = table.receipt(TOKEN, 0, [DAY], daily_rows(DAY))
    left = {path for path in root.rglob("*") if path.is_file()} - before
    left.add(put(path_of(site.staging) / table.identifier / TOKEN / "00000.json", receipt.to_json().encode()))
    return site, table, orphans | left


@pytest.mark.parametrize("days", [0, 3.1])
@pytest.mark.parametrize("step", [*STEPS, "moved"])
def test_the_pass_after_a_kill_converges_and_everything_can_be_restored(tmp_path: Path, step: str, days: float) -> None:
    site, table, unneeded = lake(tmp_path)
    if days:
        site.pass_over(table.identifier)

    def doomed() -> None:
        again = local_site(tmp_path)
        again.runs, again.days = site.runs, days
        with _dying(step):
            again.pass_over(table.identifier)

    killed = in_a_child(doomed)
    assert killed == (0 if (step, days) == ("moved", 0) else signal.SIGKILL)
    assert all(path.exists() for path in live_files(table.table))
    for later in (later for later in (0.1, 3.2, 6.3, 6.4) if later > days):  # the grace may begin anew
        site.days = later
        report = site.pass_over(table.identifier)
        assert not report.problems
        assert not report.refused
    assert not [path for path in unneeded if path.exists()]
    assert table.counts() == {DAY: 1000}
    trash = site.trash(table.table, table.identifier, place_of(table.table.location()))
    assert trash.restore(TrashSelection()).restored == len(unneeded)
    assert all(path.exists() for path in unneeded)


@pytest.mark.parametrize("step", ["list_table", "list_receipts", "now_ms", "trash"])
def test_a_storage_that_fails_is_an_error_and_the_next_pass_goes_on(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, table, _ = lake(tmp_path)
    site.pass_over(table.identifier)
    site.days = 3.1

    def refuse(*_: object) -> None:
        raise StorageRefused("503 Slow Down")

    with monkeypatch.context() as patch:
        patch.setattr(TestSite, step, refuse)
        with pytest.raises(StorageRefused):
            site.pass_over(table.identifier)
    assert site.pass_over(table.identifier).trashed.files == 6


def test_marks_that_cannot_be_written_let_nothing_be_moved(tmp_path: Path) -> None:
    site, table, unneeded = lake(tmp_path)
    site.pass_over(table.identifier)
    marks = next(path_of(site.staging).rglob("marks"))
    marks.unlink()
    marks.mkdir()
    site.days = 3.1
    with pytest.raises(OSError):
        site.pass_over(table.identifier)
    assert all(path.exists() for path in unneeded)
