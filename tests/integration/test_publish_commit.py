"""Publish commits once, and all of it, when commits collide, catalogs are locked, answers get lost, processes die.
Which files are replaced is in test_publish.py."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError, EndpointConnectionError
from moto import mock_aws
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.glue import GlueCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.update import TableRequirement, TableUpdate
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from lakehouse_assets.commit.publish import Published
from lakehouse_assets.commit.staged import read_all
from lakehouse_assets.errors import PublishContended
from lakehouse_assets.wire.receipts import Receipt
from tests.support.forks import Daily, daily_rows
from tests.support.proxy import Fault, Proxy
from tests.support.servers import SeaweedFS

DAYS = ("2013-01-01", "2013-01-02", "2013-01-03")


def test_eight_publishers_of_one_table_all_succeed_with_one_snapshot_each(daily: Daily, catalog_properties) -> None:
    days = [f"2013-03-{n:02}" for n in range(1, 9)]
    daily.append(daily_rows(*days, each=3))
    staged = {day: daily.stage(f"run-{day}", 0, [day], daily_rows(day, each=2)) for day in days}

    def publish(day: str) -> Published:
        own = Daily(load_catalog("lake", **catalog_properties), daily.identifier)
        return own.publish(f"run-{day}", [day], staged[day])

    with ThreadPoolExecutor(len(days)) as pool:
        published = list(pool.map(publish, days))

    assert daily.counts() == dict.fromkeys(days, 2)
    assert len(daily.table.snapshots()) == 1 + len(days)
    assert {s.snapshot_id for s in daily.table.snapshots()} >= {p.snapshot_id for p in published}
    assert not any(p.repeated for p in published)


def test_eight_publishers_of_one_partition_leave_the_rows_of_one(sqlite: dict[str, str]) -> None:
    daily = Daily.create(load_catalog("lake", **sqlite))
    staged = {n: daily.stage(f"run-{n}", 0, DAYS[:1], daily_rows(DAYS[0], each=100 + n)) for n in range(8)}

    def publish(n: int) -> Published:
        own = Daily(load_catalog("lake", **sqlite), daily.identifier)
        return own.publish(f"run-{n}", DAYS[:1], staged[n])

    with ThreadPoolExecutor(len(staged)) as pool:
        published = list(pool.map(publish, staged))

    (last,) = (n for n, p in enumerate(published) if p.snapshot_id == daily.table.current_snapshot().snapshot_id)
    assert daily.counts() == {DAYS[0]: 100 + last}
    assert len(daily.table.snapshots()) == len(staged)


def test_another_commit_that_came_first_is_logged_in_one_quiet_sentence(
    sqlite: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    catalog = load_catalog("lake", **sqlite)
    daily, commit = Daily.create(catalog), catalog.commit_table
    staged = daily.stage("run", 0, DAYS, daily_rows(*DAYS))

    def late(*arguments: Any) -> Any:
        catalog.commit_table = commit
        daily.append(daily_rows("2013-02-01"))
        return commit(*arguments)

    catalog.commit_table = late
    with caplog.at_level(logging.INFO, "lakehouse_assets"):
        assert daily.publish("run", DAYS, staged).attempts == 2
    (logged,) = [record for record in caplog.records if record.name.startswith("lakehouse_assets")]
    assert logged.levelname == "INFO"
    assert "Exception" not in logged.getMessage()
    assert f"{daily.identifier}: another commit came first at attempt 1 of 20" in logged.getMessage()


def test_a_commit_to_another_branch_that_came_first_is_a_conflict_like_others(
    catalog: Catalog, daily: Daily, monkeypatch: pytest.MonkeyPatch
) -> None:
    daily.append(daily_rows(DAYS[0], each=3))
    table, commit = daily.table, catalog.commit_table
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "audit").commit()
    staged = daily.stage("run", 0, DAYS, daily_rows(*DAYS))

    def late(*arguments: Any) -> Any:
        monkeypatch.setattr(catalog, "commit_table", commit)
        daily.table.append(daily_rows("2013-02-01"), branch="audit")
        return commit(*arguments)

    monkeypatch.setattr(catalog, "commit_table", late)
    published = daily.publish("run", DAYS, staged)
    assert (published.attempts, daily.table.current_snapshot().snapshot_id) == (2, published.snapshot_id)
    assert daily.counts() == dict.fromkeys(DAYS, 1)
    assert len(daily.table.snapshots()) == 3


# SQLite locked by somebody else


LOCKER = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
time.sleep(float(sys.argv[2]))
db.execute("COMMIT")
"""


@pytest.fixture
def sqlite(tmp_path: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": tmp_path.as_uri()}


@pytest.mark.server
def test_a_catalog_locked_for_ten_seconds_is_outlasted(sqlite: dict[str, str], tmp_path: Path) -> None:
    daily = Daily.create(load_catalog("lake", **sqlite))
    staged = daily.stage("run", 0, DAYS, daily_rows(*DAYS))
    table = daily.table
    locker = subprocess.Popen(
        [sys.executable, "-c", LOCKER, str(tmp_path / "catalog.db"), "10"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert locker.stdout.readline() == "locked\n"
        with pytest.raises(OperationalError, match="locked"):  # the naive way
            table.append(daily_rows("2013-02-01"))
        published = daily.publish("run", DAYS, staged)
    finally:
        locker.wait(30)
    assert daily.counts() == dict.fromkeys(DAYS, 1)
    assert not published.repeated


# Answers lost on the wire


@pytest.mark.server
@pytest.mark.parametrize("fault", Fault)
def test_a_lost_or_forged_answer_is_looked_up(weed: SeaweedFS, wire: Proxy, fault: Fault) -> None:
    daily = Daily.create(load_catalog("lake", **weed.properties(wire.uri)))
    daily.append(daily_rows(*DAYS, "2013-02-01", each=3))
    staged = daily.stage("run", 0, DAYS, daily_rows(*DAYS))
    wire.faults, wire.commits = [fault], 0

    published = daily.publish("run", DAYS, staged)

    assert wire.commits == (2 if fault is Fault.REFUSED else 1), "a commit that landed is not sent again"
    assert not published.repeated
    assert daily.table.current_snapshot().snapshot_id == published.snapshot_id
    assert len(daily.table.snapshots()) == 2
    assert daily.counts() == {**dict.fromkeys(DAYS, 1), "2013-02-01": 3}


@pytest.mark.server
def test_the_naive_way_destroys_a_snapshot_that_landed_despite_a_conflict(weed: SeaweedFS, wire: Proxy) -> None:
    """Own retries 0 and nothing else: PyIceberg deletes the manifests of a commit reported as failed."""
    daily = Daily.create(load_catalog("lake", **weed.properties(wire.uri)), {"commit.retry.num-retries": "0"})
    wire.faults = [Fault.CONFLICT]
    with pytest.raises(CommitFailedException):
        daily.append(daily_rows(*DAYS))
    assert daily.table.current_snapshot() is not None
    with pytest.raises(FileNotFoundError):
        daily.counts()


class LosesAnswers(SqlCatalog):
    """Commits, and then raises an error."""

    error: BaseException | None = None

    def commit_table(self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]):
        response = super().commit_table(table, requirements, updates)
        error, self.error = self.error, None
        if error is not None:
            raise error
        return response


@pytest.mark.parametrize(
    "error", [CommitFailedException("x"), ConnectionResetError("x"), ValueError("x"), KeyboardInterrupt()], ids=repr
)
def test_a_commit_that_landed_in_spite_of_its_error_is_found(sqlite: dict[str, str], error: BaseException) -> None:
    catalog = LosesAnswers("lake", **sqlite)
    daily = Daily.create(catalog)
    staged = daily.stage("run", 0, DAYS, daily_rows(*DAYS))
    catalog.error = error
    if isinstance(error, Exception):
        published = daily.publish("run", DAYS, staged)
        assert not published.repeated
    else:
        with pytest.raises(KeyboardInterrupt):
            daily.publish("run", DAYS, staged)
        assert daily.publish("run", DAYS, staged).repeated
    assert daily.counts() == dict.fromkeys(DAYS, 1)
    assert len(daily.table.snapshots()) == 1


# Attempts that run out


class AlwaysConflicts(SqlCatalog):
    def commit_table(self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]):
        raise CommitFailedException("somebody else was faster")


def test_attempts_that_run_out_leave_the_table_and_its_folder_as_they_were(
    sqlite: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakehouse_assets.commit.publish.ATTEMPTS", 3)
    daily = Daily.create(load_catalog("lake", **sqlite))
    daily.append(daily_rows(*DAYS, each=3))
    staged = daily.stage("run", 0, DAYS, daily_rows(*DAYS))
    metadata = Path(daily.table.location().removeprefix("file://"), "metadata")
    before = sorted(metadata.iterdir())

    unlucky = Daily(AlwaysConflicts("lake", **sqlite), daily.identifier)
    with pytest.raises(PublishContended, match=r"3 attempts.*somebody else was faster.*from failure"):
        unlucky.publish("run", DAYS, staged)

    assert sorted(metadata.iterdir()) == before
    daily.publish("run", DAYS, staged)
    assert daily.last_change("records") == (3, 9), "and can still be published"


def no_space() -> None:
    raise OSError(28, "No space left on device")


def full_database() -> None:
    with create_engine("sqlite://").connect() as connection:
        connection.execute(text("PRAGMA max_page_count = 1"))
        connection.execute(text("CREATE TABLE t (n)"))


@pytest.mark.parametrize(
    ("fail", "says"), [(no_space, "No space left"), (full_database, "disk is full")], ids=["storage", "catalog"]
)
def test_an_error_that_will_not_pass_is_not_retried(
    sqlite: dict[str, str], fail: Callable[[], None], says: str
) -> None:
    daily = Daily.create(load_catalog("lake", **sqlite))
    staged = daily.stage("run", 0, DAYS, daily_rows(*DAYS))

    class Full(SqlCatalog):
        commits = 0

        def commit_table(self, table: Table, requirements, updates):
            self.commits += 1
            fail()

    full = Full("lake", **sqlite)
    with pytest.raises((OSError, OperationalError), match=says):
        Daily(full, daily.identifier).publish("run", DAYS, staged)
    assert full.commits == 1


# Glue's own trouble


class Refusing:
    """Answers in Glue's place until the errors are used up: each a code and a status, or what botocore raises."""

    def __init__(self, catalog: GlueCatalog, errors: list[tuple[str, int] | Exception]) -> None:
        self.errors = errors
        self.commits = 0
        catalog.glue.meta.events.register("before-call.glue.UpdateTable", self.answer)

    def answer(self, **_: Any) -> tuple[AWSResponse, dict[str, Any]] | None:
        self.commits += 1
        if not self.errors:
            return None
        error = self.errors.pop(0)
        if isinstance(error, Exception):
            raise error
        code, status = error
        parsed = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}
        return AWSResponse("", status, {}, None), parsed


@pytest.fixture
def glue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GlueCatalog]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with mock_aws():
        # botocore's own attempts take longer, and end in the same errors.
        properties = {"glue.region": "us-east-1", "warehouse": tmp_path.as_uri(), "glue.max-retries": 0}
        yield GlueCatalog("lake", **properties)


UNREACHED = EndpointConnectionError(endpoint_url="https://glue.us-east-1.amazonaws.com")
PASSING = [("ThrottlingException", 400), ("InternalServiceException", 500), UNREACHED]


@pytest.mark.parametrize("error", PASSING, ids=str)
def test_glue_that_is_busy_is_asked_again(glue: GlueCatalog, error: tuple[str, int] | Exception) -> None:
    daily = Daily.create(glue)
    staged = daily.stage("run", 0, DAYS, daily_rows(*DAYS))
    refusing = Refusing(glue, [error, error])
    assert not daily.publish("run", DAYS, staged).repeated
    assert refusing.commits == 3
    assert daily.counts() == dict.fromkeys(DAYS, 1)


@pytest.mark.parametrize("error", PASSING, ids=str)
def test_glue_that_stays_busy_ends_in_advice(
    glue: GlueCatalog, error: tuple[str, int] | Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakehouse_assets.commit.publish.ATTEMPTS", 3)
    daily = Daily.create(glue)
    staged = daily.stage("run", 0, DAYS, daily_rows(*DAYS))
    refusing = Refusing(glue, [error] * 3)
    with pytest.raises(PublishContended, match=r"3 attempts.*from failure"):
        daily.publish("run", DAYS, staged)
    assert refusing.commits == 3


def test_what_glue_does_not_allow_is_not_asked_again(glue: GlueCatalog) -> None:
    daily = Daily.create(glue)
    staged = daily.stage("run", 0, DAYS, daily_rows(*DAYS))
    refusing = Refusing(glue, [("AccessDeniedException", 400)])
    with pytest.raises(ClientError, match="AccessDenied"):
        daily.publish("run", DAYS, staged)
    assert refusing.commits == 1


# A publisher killed around its commit


class Dies(SqlCatalog):
    """SIGKILLs its process at the commit, before or after it lands."""

    landed: bool

    def commit_table(self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]):
        if self.landed:
            super().commit_table(table, requirements, updates)
        os.kill(os.getpid(), signal.SIGKILL)


def publish_and_die(sqlite: dict[str, str], identifier: str, receipt: Receipt, landed: bool) -> None:
    catalog = Dies("lake", **sqlite)
    catalog.landed = landed
    daily = Daily(catalog, identifier)
    daily.publish("run", DAYS, *read_all(daily.table.io.properties, [receipt]))


@pytest.mark.server
@pytest.mark.parametrize("landed", [False, True], ids=["before the commit", "after the commit"])
def test_a_killed_publisher_is_taken_up_by_the_next(sqlite: dict[str, str], landed: bool) -> None:
    daily = Daily.create(load_catalog("lake", **sqlite))
    daily.append(daily_rows(*DAYS, each=3))
    staged = daily.stage("run", 0, DAYS, daily_rows(*DAYS))
    process = multiprocessing.get_context("spawn").Process(
        target=publish_and_die, args=(sqlite, daily.identifier, staged.receipt, landed)
    )
    process.start()
    process.join(300)
    assert process.exitcode == -signal.SIGKILL
    assert daily.counts() == dict.fromkeys(DAYS, 1 if landed else 3), "half of it is never visible"
    assert daily.publish("run", DAYS, staged).repeated is landed
    assert daily.counts() == dict.fromkeys(DAYS, 1)
    assert len(daily.table.snapshots()) == 2
