"""The queue on a real daemon and a real code server, each of which is killed where it may hurt, and started again.
Deaths at every single call are in unit/queue/test_queue_model.py; ticks without a daemon in test_queue.py."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.support.dagster_server import until
from tests.support.fakes.wire import Fault
from tests.support.faults import Signs, rows_by_day
from tests.support.queue_location import TABLES
from tests.support.queue_services import Kind, QueueServices, queue_services

pytestmark = pytest.mark.server
FIRST, SECOND = TABLES
DAYS = {FIRST.identifier: "2024-01", SECOND.identifier: "2024-02"}
"""Each table has a month of its own, so that workers of one alone can be held."""
BAD = {"{": "not JSON", '{"table": "demo.none"}': "no table"}
EVERY = pytest.param(tuple(Kind), id="each")
ALONE = [pytest.param((kind,), marks=pytest.mark.long("One kind of death at a time."), id=kind.value) for kind in Kind]


@pytest.fixture
def services(tmp_path: Path) -> Iterator[QueueServices]:
    with queue_services(tmp_path / "home", QUEUE_TRIES="9") as found:
        yield found


@pytest.mark.long("Kills daemons for minutes; test_queue_model.py and test_queue.py commit the same deaths.")
@pytest.mark.parametrize("kinds", [EVERY, *ALONE])
def test_nothing_is_lost_whatever_dies_while_messages_come_while_runs_work_and_behind_a_publish(
    services: QueueServices, kinds: Collection[Kind]
) -> None:
    signs = Signs(services.lake)
    signs.hold(*_days(FIRST.identifier, 1, 24), *_days(SECOND.identifier, 1, 24))
    _ask(services, 1, 8)
    _until_both_work(services)
    calls = services.service.calls["ReceiveMessage"]
    _ask(services, 5, 16)
    services.send(*BAD)
    until(lambda: services.service.calls["ReceiveMessage"] > calls, state=services.state)
    _kill(services, kinds)

    _ask(services, 13, 22)
    _until_both_work(services)
    _kill(services, kinds)

    _until_both_work(services)
    signs.hold(*_days(SECOND.identifier, 1, 24))
    until(services.snapshots, state=services.state)
    _kill(services, kinds)

    signs.hold()
    until(services.is_settled, state=services.state)
    assert services.killed == dict.fromkeys(kinds, 3)
    for table in TABLES:
        assert rows_by_day(services.lake, table) == dict.fromkeys(_days(table.identifier, 1, 22), 3)
    dead = services.dead()
    assert {body for body, _ in dead} == set(BAD)  # one may be there twice, if its sender died before it was deleted
    assert all(BAD[body] in reason for body, reason in dead)


@pytest.mark.long("Waits for half a minute of failing calls; test_queue.py lets single ticks fail.")
def test_half_a_minute_of_503_loses_nothing_and_what_waits_is_run(services: QueueServices) -> None:
    signs = Signs(services.lake)
    signs.hold(*_days(FIRST.identifier, 1, 24), *_days(SECOND.identifier, 1, 24))
    _ask(services, 1, 8)
    _until_both_work(services)
    refused = Fault("ServiceUnavailable", status=503)
    for operation in ("ReceiveMessage", "DeleteMessageBatch", "GetQueueAttributes"):
        services.service.fail(operation, refused, 100_000)
    ends = time.monotonic() + 30.0
    _ask(services, 5, 16)
    before = services.service.calls["ReceiveMessage"]
    signs.hold()
    until(lambda: services.snapshots() >= len(TABLES), state=services.state)
    time.sleep(max(0.0, ends - time.monotonic()))
    assert services.service.calls["ReceiveMessage"] > before
    services.service.faults.clear()
    services.hand_out_again()
    until(services.is_settled, state=services.state)
    for table in TABLES:
        assert rows_by_day(services.lake, table) == dict.fromkeys(_days(table.identifier, 1, 16), 3)


def _days(table: str, first: int, last: int) -> Sequence[str]:
    return [f"{DAYS[table]}-{day:02}" for day in range(first, last + 1)]


def _ask(services: QueueServices, first: int, last: int) -> None:
    """A message for each of these days of each table."""
    for table in DAYS:
        services.send(*({"table": table, "partitions": [day]} for day in _days(table, first, last)))


def _until_both_work(services: QueueServices) -> None:
    until(lambda: len(services.pids(Kind.WORKER)) == len(TABLES), state=services.state)


def _kill(services: QueueServices, kinds: Collection[Kind]) -> None:
    for kind in kinds:
        until(partial(services.kill, kind), state=services.state)  # what died before may be starting still
    services.hand_out_again()
