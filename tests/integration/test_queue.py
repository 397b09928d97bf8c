"""The queue from message to rows: real ticks of the sensor, real runs with tiny workers, SQS on loopback.
The same with deaths at every call is in unit/queue/test_queue_model.py; on a real daemon in test_queue_daemon.py."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from lakehouse_assets.declare.modes import Append
from lakehouse_assets.declare.options import Arrivals, Pace
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.extensions.queue.messages import said_by
from lakehouse_assets.extensions.queue.redrive_job import redrive_job
from lakehouse_assets.extensions.queue.sensor import QueueTroubled
from lakehouse_assets.extensions.queue.source import sqs_client
from tests.conftest import ROOT, missing
from tests.support.fakes.sqs_service import LARGEST
from tests.support.fakes.wire import Fault
from tests.support.faults import FaultyLakehouse, Signs, fill, from_failure, read_only, rows_by_day, small_disk, tiny
from tests.support.postgres import binaries, postgresql
from tests.support.queue_lake import DEAD, QUEUE, QueueLake, queue_lake
from tests.support.servers import free_ports, seaweedfs
from tests.support.twins import twins

pytestmark = pytest.mark.spark
DAYS = [f"2024-01-0{n}" for n in range(1, 6)]
TABLE = tiny(arrivals=Arrivals("in/{day}.csv", Pace(tries=2)), partitions_per_worker=None)
OTHER = tiny(identifier="demo.other", arrivals=Arrivals("in/{day}.csv"), partitions_per_worker=None)


@pytest.fixture
def queue(settings: Settings, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> Iterator[QueueLake]:
    settings.home.mkdir(exist_ok=True)
    with queue_lake(settings, instance, monkeypatch, TABLE) as found:
        yield found


def notification(*keys: str, bucket: str = "drop") -> dict[str, Any]:
    record = {"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": bucket}, "object": {}}}
    return {"Records": [{**record, "s3": {"bucket": {"name": bucket}, "object": {"key": key}}} for key in keys]}


def test_many_messages_are_one_run_and_one_commit(queue: QueueLake) -> None:
    for day in (*DAYS, *DAYS):
        queue.send(notification(f"demo/in/{day}.csv"))
    (request,) = queue.tick()
    result = queue.run(request)
    assert result.success
    assert rows_by_day(queue.lake, TABLE) == dict.fromkeys(DAYS, 3)
    assert queue.lake.snapshots(TABLE) == 1
    assert not queue.fake.queues[QUEUE].messages
    assert not queue.waiting()
    assert not queue.tick()
    assert queue.said == "received 0 for 0 partitions; 0 runs asked; 0 wait; 0 parked"


def test_a_run_tells_what_it_covered(queue: QueueLake) -> None:
    queue.ask(DAYS[0])
    queue.ask(DAYS[0])
    (request,) = queue.tick()
    result = queue.run(request)
    run = queue.lake.instance.get_run_by_id(result.run_id)
    assert run
    assert run.tags["lakehouse/messages"] == "2"
    assert int(run.tags["lakehouse/oldest_message_seconds"]) >= 0
    (event,) = result.get_asset_materialization_events()
    shown = event.materialization.metadata
    assert shown["messages"].value == 2
    assert 0 <= shown["message_wait_seconds"].value <= shown["message_end_to_end_seconds"].value


def test_a_run_by_hand_empties_the_inbox_of_its_partitions(queue: QueueLake) -> None:
    queue.ask(*DAYS[:3])
    queue.tick()  # its run is never made
    assert queue.lake.run(TABLE, DAYS[0], DAYS[1]).success
    assert [item.key for item in queue.waiting().values()] == [DAYS[2]]


def test_what_comes_while_a_run_works_is_run_once_more(queue: QueueLake) -> None:
    queue.ask(DAYS[0])
    (request,) = queue.tick()
    Signs(queue.lake).fail(DAYS[0])
    assert not queue.run(request).success
    Signs(queue.lake).fail("nothing")
    (failed,) = queue.lake.instance.get_runs()
    queue.ask(DAYS[0])
    queue.tick()  # into the inbox, after the first run noted what it covers
    assert queue.run(request, **from_failure(failed.run_id)).success
    assert len(queue.waiting()) == 1
    assert queue.settle() == 1


@pytest.mark.parametrize(
    ("options", "asked"),
    twins([({}, [DAYS[0]]), ({"write_mode": Append(), "unique": ()}, [])], "test_decide.py has both without runs."),
    ids=["Overwrite", "Append"],
)
def test_a_partition_is_asked_for_again_where_a_run_replaces_what_another_wrote_meanwhile(
    queue: QueueLake, options: dict[str, Any], asked: list[str]
) -> None:
    of = tiny(identifier="demo.overlapped", partitions_per_worker=None, **options)
    Signs(queue.lake).fail(DAYS[0])
    first = queue.lake.run(of, DAYS[0])
    assert not first.success
    Signs(queue.lake).fail("nothing")
    assert queue.lake.run(of, DAYS[0]).success
    assert queue.lake.run(of, DAYS[0], tags=from_failure(first.run_id)).success
    assert [item.key for item in queue.waiting().values()] == asked


@pytest.mark.slow("A partition that fails again and again, as the queue meets it, with runs.")
def test_a_bad_partition_is_parked_and_its_neighbours_are_published(queue: QueueLake) -> None:
    Signs(queue.lake).fail(DAYS[1])
    queue.ask(*DAYS[:3])
    for _ in range(12):
        for request in queue.tick(70.0):
            queue.run(request)
    assert rows_by_day(queue.lake, TABLE) == {DAYS[0]: 3, DAYS[2]: 3}
    assert queue.said == "received 0 for 0 partitions; 0 runs asked; 0 wait; 1 parked"
    queue.cursor = None
    queue.tick()
    check = queue.evaluations[-1]
    assert (check.check_name, check.passed, check.severity) == ("arrivals", False, dg.AssetCheckSeverity.WARN)
    shown = str(check.metadata["keys"].value)
    assert DAYS[1] in shown
    assert "KeyError" in shown
    assert "/runs/" in shown

    Signs(queue.lake).fail("nothing")
    queue.ask(DAYS[1])  # a new message grants a try
    assert queue.settle() == 1
    assert rows_by_day(queue.lake, TABLE) == dict.fromkeys(DAYS[:3], 3)
    assert queue.evaluations[-1].passed


def test_what_nobody_can_read_goes_to_the_dead_letters_with_its_reason(queue: QueueLake) -> None:
    queue.send("{")
    queue.send({"table": "demo.none"})
    queue.send(notification("elsewhere/x.csv"))
    queue.send(notification("demo/in/2024-13-01.csv"))
    queue.send({"Records": []})
    queue.send(notification("demo/in/%00%EF%BF%BE.csv"))
    queue.send({"Service": "Amazon S3", "Event": "s3:TestEvent"})
    queue.send("x" * LARGEST)
    queue.ask(DAYS[0])
    assert len(queue.tick()) == 1
    found = dict(queue.dead())
    assert len(found) == 7
    assert "not JSON" in found["{"]
    assert "no table 'demo.none'" in found['{"table": "demo.none"}']
    assert found["x" * LARGEST] == ""  # there is no room for it
    assert all(reason for body, reason in found.items() if len(body) < LARGEST)
    assert not queue.fake.queues[QUEUE].messages


@pytest.mark.parametrize("day", ["2024-01-01"])
def test_the_envelope_decides_how_keys_are_written(queue: QueueLake, day: str) -> None:
    plain = {
        "detail-type": "Object Created",
        "detail": {"bucket": {"name": "b"}, "object": {"key": f"demo/in/{day}.csv"}},
    }
    queue.send(plain)
    queue.send({"Type": "Notification", "Message": json.dumps(notification(f"demo/in/{day}.csv"))})
    (request,) = queue.tick()
    assert request.partition_key == day
    assert [item.messages for item in queue.waiting().values()] == [2]


@pytest.mark.long("test_intake.py reads such messages without runs.")
def test_one_object_may_concern_several_tables(
    settings: Settings, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.home.mkdir(exist_ok=True)
    with queue_lake(settings, instance, monkeypatch, TABLE, OTHER) as queue:
        queue.send(notification(f"demo/in/{DAYS[0]}.csv"))
        assert queue.settle() == 2
        assert rows_by_day(queue.lake, TABLE) == rows_by_day(queue.lake, OTHER) == {DAYS[0]: 3}


@pytest.mark.parametrize(
    "fault",
    twins(["ServiceUnavailable", "ThrottlingException", "AccessDeniedException"], "All errors are handled alike."),
)
def test_the_inbox_is_decided_while_sqs_fails_and_the_third_tick_is_red(queue: QueueLake, fault: str) -> None:
    queue.ask(DAYS[0])
    (request,) = queue.tick()
    for operation in ("ReceiveMessage", "GetQueueAttributes"):
        queue.service.fail(operation, Fault(fault, status=503 if fault == "ServiceUnavailable" else 400), 20)
    assert queue.run(request).success
    assert not queue.tick()
    assert fault in queue.said
    queue.tick()
    with pytest.raises(QueueTroubled, match=fault):
        queue.tick()
    for faults in queue.service.faults.values():
        faults.clear()
    queue.ask(DAYS[1])
    assert len(queue.tick()) == 1


def test_a_dead_letter_queue_that_is_not_there_holds_up_no_good_message(queue: QueueLake) -> None:
    del queue.fake.queues[DEAD]
    queue.send("{")
    queue.ask(DAYS[0])
    (request,) = queue.tick()
    assert [m.body for m in queue.fake.queues[QUEUE].messages.values()] == ["{"]
    assert queue.run(request).success
    queue.tick(130.0)
    assert "QueueDoesNotExist" in queue.said or "does not exist" in queue.said


def test_what_is_not_deleted_comes_again_and_harms_nobody(
    settings: Settings, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.home.mkdir(exist_ok=True)
    unlucky = iter([True] * 4 + [False] * 100)
    with queue_lake(settings, instance, monkeypatch, TABLE, unlucky=lambda: next(unlucky)) as queue:
        for day in DAYS:
            queue.ask(day)
        (request,) = queue.tick()
        assert queue.run(request).success
        assert len(queue.fake.queues[QUEUE].messages) == 4
        queue.now += 200
        assert queue.settle() <= 3
        assert not queue.fake.queues[QUEUE].messages
        assert rows_by_day(queue.lake, TABLE) == dict.fromkeys(DAYS, 3)


def test_the_sensors_cursor_may_be_reset(queue: QueueLake) -> None:
    queue.ask(DAYS[0])
    Signs(queue.lake).fail(DAYS[0])
    (request,) = queue.tick()
    queue.run(request)
    queue.cursor = None
    assert not queue.tick()  # the backoff is still known
    queue.cursor = "what a person wrote"
    assert len(queue.tick(60.0)) == 1


@pytest.mark.long("test_decide.py decides by such clocks without runs.")
def test_a_clock_that_was_wrong_by_five_minutes_loses_nothing(queue: QueueLake) -> None:
    queue.now += 300
    queue.ask(DAYS[0])
    (request,) = queue.tick()
    queue.now -= 300
    assert queue.run(request).success
    queue.ask(DAYS[1])
    assert queue.settle() == 1
    assert rows_by_day(queue.lake, TABLE) == {DAYS[0]: 3, DAYS[1]: 3}


def test_a_partition_of_a_day_to_come_waits_for_it(
    settings: Settings, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.home.mkdir(exist_ok=True)
    endless = replace(TABLE, partitions=dg.DailyPartitionsDefinition("2024-01-01"))
    with queue_lake(settings, instance, monkeypatch, endless) as queue:
        queue.ask("2999-01-01")
        assert not queue.tick()
        assert not queue.dead()
        assert "1 wait" in queue.said


def test_the_depth_is_shown_every_five_minutes(queue: QueueLake) -> None:
    def shown() -> list[dg.AssetObservation]:
        return [e for e in queue.data.asset_events if isinstance(e, dg.AssetObservation)]

    queue.tick()
    (first,) = shown()
    assert first.asset_key == dg.AssetKey(["queue", QUEUE])
    assert first.metadata["visible"].value == 0
    queue.ask(*DAYS[:2])
    queue.tick(290.0)
    assert not shown()
    queue.tick(10.0)
    (second,) = shown()
    assert second.metadata["in_runs"].value == 2
    assert second.metadata["waiting"].value == 0
    assert second.metadata["drained_per_minute"].value == 0.2


def test_a_flood_of_one_table_keeps_no_other_waiting(
    settings: Settings, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.home.mkdir(exist_ok=True)
    monkeypatch.setenv("LAKEHOUSE_QUEUE_RUNS", "1")
    flood = replace(TABLE, arrivals=Arrivals("in/{day}.csv", Pace(ceiling=1, runs=4)))
    with queue_lake(settings, instance, monkeypatch, flood, OTHER) as queue:
        queue.ask(*DAYS)
        queue.ask(DAYS[0], table=OTHER)
        first = queue.tick()
        queue.run(first[0])
        second = queue.tick()
        assert len(first) == len(second) == 1
        assert {r.asset_selection[0].path[-1] for r in (*first, *second)} == {"numbers", "other"}


def test_messages_read_here_are_of_the_kinds_aws_sends() -> None:
    assert [said.key for said in said_by(json.dumps(notification("a+b%2Bc%C3%A9%25/d.csv")))] == ["a b+cé%/d.csv"]


def test_a_trickle_is_one_commit_for_many_messages(
    settings: Settings, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.home.mkdir(exist_ok=True)
    slow = replace(TABLE, arrivals=Arrivals("in/{day}.csv", Pace(floor=10, latency=timedelta(seconds=60))))
    with queue_lake(settings, instance, monkeypatch, slow) as queue:
        found = []
        for day in DAYS:
            queue.ask(day)
            for request in queue.tick(16.0):
                queue.run(request)
                found.append(request)
        (request,) = found
        assert request.tags["dagster/asset_partition_range_end"] == DAYS[3]


@pytest.mark.long("test_intake.py and test_decide.py hold both halves.")
def test_what_waits_for_a_table_that_a_deployment_lacks_is_told_and_waits(queue: QueueLake) -> None:
    queue.ask(DAYS[0])
    queue.tick()  # its run is never made
    queue.tables = (OTHER,)
    assert not queue.tick(70.0)
    assert queue.said.endswith("0 parked; 1 wait for tables that are not declared")
    queue.tables = (TABLE,)
    assert queue.settle() == 1
    assert rows_by_day(queue.lake, TABLE) == {DAYS[0]: 3}


def redriven(queue: QueueLake, **config: Any) -> dict[str, Any]:
    """What the job shows."""
    settings = queue.lake.settings
    assert settings.queue
    result = redrive_job(queue.tables, settings.queue).execute_in_process(
        instance=queue.lake.instance,
        resources={"lakehouse": FaultyLakehouse(settings)},
        run_config=config,
    )
    (event,) = [e for e in result.all_events if e.is_successful_output]
    return {name: value.value for name, value in event.step_output_data.metadata.items()}


@pytest.mark.slow("The only test of what a person does with parked partitions and dead letters.")
def test_redrive_shows_first_and_then_tries_parked_partitions_and_dead_letters_again(queue: QueueLake) -> None:
    Signs(queue.lake).fail(DAYS[0])
    queue.ask(DAYS[0])
    queue.send("{")
    unknown = {"table": "demo.other", "partitions": [DAYS[0]]}
    queue.send(unknown)
    for _ in range(4):
        for request in queue.tick(70.0):
            queue.run(request)
    assert "1 parked" in queue.said
    Signs(queue.lake).fail("nothing")
    queue.tables = (TABLE, OTHER)  # deployed meanwhile

    def found(**config: Any) -> list[tuple[str, ...]]:
        return [tuple(record.data.values()) for record in redriven(queue, **config)["redriven"].records]

    assert sorted((row[0], row[3]) for row in found()) == [
        ("dead letters", "stays: it can't be read"),
        ("dead letters", "would be sent once more"),
        ("parked", "would be tried once more"),
    ]
    assert not queue.tick()
    assert [row[1] for row in found(table="demo.other", dry_run=False)] == [f"demo.other {DAYS[0]}"]
    assert [row[1] for row in found(table=TABLE.identifier, keys=[DAYS[1]], dry_run=False)] == []
    assert [row[1] for row in found(table=TABLE.identifier, keys=[DAYS[0]], dry_run=False)] == [
        f"{TABLE.identifier} {DAYS[0]}"
    ]
    assert queue.settle(seconds=200.0) == 2
    assert rows_by_day(queue.lake, TABLE) == rows_by_day(queue.lake, OTHER) == {DAYS[0]: 3}
    assert [body for body, _ in queue.dead()] == ["{"]


def test_the_queue_calls_what_the_page_names_and_nothing_else(queue: QueueLake) -> None:
    called: set[tuple[str, str]] = set()
    answer = queue.service.answer

    def noting(operation: Any, parameters: dict[str, Any]) -> dict[str, Any]:
        called.add((parameters["QueueUrl"].rpartition("/")[2], f"sqs:{operation.name.removesuffix('Batch')}"))
        return answer(operation, parameters)

    queue.service.answer = noting  # type: ignore[method-assign]
    queue.send("{")
    queue.ask(DAYS[0])
    queue.tick()
    sensor = set(called)
    called.clear()
    for keys in (DAYS, ["none"]):
        body = json.dumps({"table": TABLE.identifier, "partitions": keys})
        queue.fake.send_message(QueueUrl=queue.fake.url(DEAD), MessageBody=body)
    redriven(queue, dry_run=False)
    rows = [row for row in (ROOT / "docs" / "queue.md").read_text().splitlines() if "`sqs:" in row]
    said = [set(re.findall(r"`(?:sqs:)?([A-Z]\w+)`", row)) for row in rows]
    assert said == [{action.removeprefix("sqs:") for _, action in calls} for calls in (sensor, called)]


def test_no_worker_starts_while_covers_cant_be_noted(queue: QueueLake) -> None:
    queue.ask(DAYS[0])
    (request,) = queue.tick()
    staging = queue.lake.settings.home / "staging"
    with read_only(staging):
        assert not queue.run(request).success
        assert not Signs(queue.lake).started()
        queue.ask(DAYS[1])
        with pytest.raises(OSError, match="Read-only"):
            queue.tick()
        assert len(queue.fake.queues[QUEUE].messages) == 1  # SQS keeps it
    assert queue.settle(seconds=200.0) == 2
    assert rows_by_day(queue.lake, TABLE) == {DAYS[0]: 3, DAYS[1]: 3}


@pytest.mark.long("The test before it fails at the same place, for another cause.")
def test_a_full_disk_starts_no_worker_and_loses_nothing(queue: QueueLake) -> None:
    with small_disk(queue.lake.settings.home / "staging") as disk:
        queue.ask(DAYS[0])
        (request,) = queue.tick()
        fill(disk)
        assert not queue.run(request).success
        assert not Signs(queue.lake).started()
        queue.ask(DAYS[1])
        with pytest.raises(OSError, match="No space left"):
            queue.tick()
        assert len(queue.fake.queues[QUEUE].messages) == 1  # SQS keeps it
        (disk / "filler").unlink()
        assert queue.settle(seconds=200.0) == 2
        assert not queue.waiting()
        assert rows_by_day(queue.lake, TABLE) == {DAYS[0]: 3, DAYS[1]: 3}


@pytest.mark.long("Repeats on S3 what the tests before hold for a folder.")
@pytest.mark.server
def test_the_inbox_may_be_on_s3(
    settings: Settings, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.home.mkdir(exist_ok=True)
    with seaweedfs() as server:
        for name, value in {**server.environment(), "LAKEHOUSE_STAGING": f"{server.plain}/staging"}.items():
            monkeypatch.setenv(name, value)
        with queue_lake(settings, instance, monkeypatch, TABLE) as queue:
            queue.ask(*DAYS)
            assert queue.settle() == 1
            assert rows_by_day(queue.lake, TABLE) == dict.fromkeys(DAYS, 3)
            assert not queue.waiting()


@pytest.mark.long("Repeats on PostgreSQL what the tests before hold for SQLite.")
@pytest.mark.server
def test_dagsters_storage_may_be_postgresql(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not binaries():
        missing("PostgreSQL is not installed")
    settings.home.mkdir(exist_ok=True)
    (tmp_path / "instance").mkdir()
    with postgresql() as server:
        place = {"hostname": server.host, "port": server.port, "username": server.user, "db_name": server.database}
        storage = {"postgres": {"postgres_db": {**place, "password": "", "scheme": "postgresql+psycopg2"}}}
        overrides = {"telemetry": {"enabled": False}, "storage": storage}
        with (
            dg.DagsterInstance.local_temp(str(tmp_path / "instance"), overrides=overrides) as instance,
            queue_lake(settings, instance, monkeypatch, TABLE) as queue,
        ):
            Signs(queue.lake).fail(DAYS[0])
            queue.ask(*DAYS[:2])
            assert queue.settle(seconds=70.0) >= 3  # one is parked
            assert rows_by_day(queue.lake, TABLE) == {DAYS[1]: 3}
            assert "1 parked" in queue.said


def test_without_a_network_nothing_is_lost_and_what_waits_is_run(
    queue: QueueLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.ask(DAYS[0])
    (request,) = queue.tick()
    (port,) = free_ports(1)
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", f"http://127.0.0.1:{port}")
    sqs_client.cache_clear()
    (again,) = queue.tick()  # whose run Dagster has made already
    assert again.run_key == request.run_key
    assert queue.run(request).success
    assert not queue.tick()
    assert "Could not connect" in queue.said
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", queue.service.url)
    sqs_client.cache_clear()
    queue.ask(DAYS[1])
    assert queue.settle() == 1
    assert rows_by_day(queue.lake, TABLE) == {DAYS[0]: 3, DAYS[1]: 3}
