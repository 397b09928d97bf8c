"""A home that two users share: both work in it where their umask lets the group write, else the second is told so."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

from lakehouse_assets.cli.home import INSTANCE
from lakehouse_assets.cli.instance import opened
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.databases import check_databases, refused_database
from lakehouse_assets.environment.env_reader import SettingsError
from lakehouse_assets.environment.settings import Settings
from tests.conftest import missing
from tests.support.killed_runs import forked

GROUP, FIRST, SECOND = 61000, 61001, 61002


@dg.op
def nothing() -> None: ...


@dg.job
def empty() -> None:
    nothing()


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder of a group that has no owner but root; pytest's own are closed to others."""
    if os.geteuid():
        missing("to be other users needs root")
    folder = Path(tempfile.mkdtemp())
    try:
        os.chown(folder, 0, GROUP)
        folder.chmod(0o2775)
        yield folder
    finally:
        shutil.rmtree(folder)


def as_user(user: int, umask: int, work: Callable[[], object]) -> bool:
    """Do this as a user of the group; whether nothing was raised."""

    def become() -> None:
        os.setgroups([GROUP])
        os.setgid(user)
        os.setuid(user)
        os.umask(umask)
        work()

    return os.waitpid(forked(become), 0)[1] == 0


def use(settings: Settings) -> None:
    """What any command does: it opens Dagster's databases and the catalog, and writes to both."""
    check_databases(settings.home)
    (settings.home / "dagster").mkdir(exist_ok=True)
    (settings.home / "tmp").mkdir(exist_ok=True)
    logs = "compute_logs: {module: dagster._core.storage.noop_compute_log_manager, class: NoOpComputeLogManager}"
    (settings.home / "dagster" / "dagster.yaml").write_text(f"{INSTANCE.read_text()}\n{logs}\n")
    os.environ |= {"DAGSTER_HOME": str(settings.home / "dagster"), "LAKEHOUSE_HOME": str(settings.home)}
    os.environ["HOME"] = str(settings.home)  # root's is closed to others
    with opened(settings) as (instance, _):
        assert empty.execute_in_process(instance=instance).success
        load_lake(settings).create_namespace(f"of_{os.getpid()}")


def refused(settings: Settings) -> None:
    with pytest.raises(
        SettingsError, match=r"you have no permission to write .* belongs to user 61001; to share a home"
    ):
        check_databases(settings.home)


def test_two_users_with_a_common_umask_work_in_it_by_turns(home: Path, settings: Settings) -> None:
    shared = replace(settings, home=home, staging=str(home / "staging"))
    with dg.DagsterInstance.ephemeral() as instance:  # imports what others may not be able to read
        empty.execute_in_process(instance=instance)
    for user in (FIRST, SECOND, FIRST):
        assert as_user(user, 0o002, lambda: use(shared))
    closed = [path for path in home.rglob("*") if path.is_file() and not path.stat().st_mode & 0o020]
    assert closed == []


def test_the_second_user_is_refused_before_anything_is_touched_where_the_first_lets_no_group_write(
    home: Path, settings: Settings
) -> None:
    shared = replace(settings, home=home, staging=str(home / "staging"))

    def make() -> None:
        with sqlite3.connect(home / "catalog.db") as catalog:
            catalog.execute("CREATE TABLE t (n)")

    assert as_user(FIRST, 0o022, make)
    before = sorted(home.rglob("*"))
    assert as_user(SECOND, 0o022, lambda: refused(shared))
    assert sorted(home.rglob("*")) == before
    assert as_user(FIRST, 0o022, lambda: check_databases(home))


def test_what_sqlite_says_of_a_database_it_cannot_open_gets_words(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError) as raised:
        sqlite3.connect(tmp_path / "no" / "folder" / "runs.db")
    wrapped = RuntimeError("of a library")
    wrapped.__cause__ = raised.value
    told = refused_database(wrapped, tmp_path)
    assert told
    assert f"LAKEHOUSE_HOME={tmp_path} can't be opened for writing (unable to open database file)" in told
    assert refused_database(sqlite3.OperationalError("no such table"), tmp_path) is None
