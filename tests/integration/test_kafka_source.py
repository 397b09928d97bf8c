"""A topic of a real broker in front of a table: each record moves once, and is read once wherever it is."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.row_source import Split
from lakehouse_assets.environment.catalog import catalog_properties, load_lake
from lakehouse_assets.errors import BadValue, SourceLost, SourceUnreachable, TooMuchHot
from lakehouse_assets.extensions.sources import kafka as kafka_source
from lakehouse_assets.extensions.sources.hot_and_cold import hot_and_cold, hot_schema
from lakehouse_assets.extensions.sources.kafka import KafkaTopic
from lakehouse_assets.extensions.sources.values import Avro
from lakehouse_assets.worker.session import configure
from tests.conftest import Lake, failure_text
from tests.support.hot_tables import events_table
from tests.support.kafka import Kafka
from tests.support.live_lake import live_catalogs
from tests.support.schema_registry import Registry, framed
from tests.support.standin_mover import made, moving
from tests.support.topics import TOPIC, Topic, value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.server, pytest.mark.spark, pytest.mark.usefixtures("inline")]


def move(lake: Lake, **tags: str) -> None:
    result = lake.run(events_table(), tags=tags)
    assert result.success, failure_text(result)


def stand_in(lake: Lake) -> None:
    """Moves what a run would, without Spark, where the test is about something else."""
    catalog = load_lake(lake.settings)
    if not catalog.table_exists(events_table().identifier):
        made(catalog, events_table())
    for _ in moving(catalog, events_table()):
        pass


def refused(lake: Lake) -> str:
    result = lake.run(events_table())
    assert not result.success
    return failure_text(result)


def seen(lake: Lake) -> list[int]:
    """What a reader sees, in order, each as often as it comes."""
    found = hot_and_cold(events_table(), columns=["n"], catalog=load_lake(lake.settings))
    return sorted(found.polars().collect()["n"].to_list())


def cold(lake: Lake) -> list[int]:
    return sorted(lake.rows(events_table(), ["n"])["n"].to_pylist())


@pytest.mark.slow("The first of its file starts Spark and Kafka.")
def test_records_are_read_once_wherever_they_are(lake: Lake, topic: Topic) -> None:
    topic.send(range(5))
    assert seen(lake) == [*range(5)]
    move(lake)
    topic.send(range(5, 8))
    assert (cold(lake), seen(lake)) == ([*range(5)], [*range(8)])
    move(lake)
    move(lake)
    assert cold(lake) == seen(lake) == [*range(8)]


def test_what_is_aborted_or_open_is_not_read_and_holds_nothing_up(lake: Lake, topic: Topic) -> None:
    topic.send([1])
    with topic.transaction(commit=False) as producer:
        producer.produce(TOPIC, value(66))
    move(lake)
    position = hot_and_cold(events_table(), catalog=load_lake(lake.settings)).position
    assert position is not None
    assert position.by_partition == (3,)  # behind the aborted record and the mark of its end
    with topic.transaction() as producer:
        producer.produce(TOPIC, value(2))
        producer.flush()
        topic.send([3])
        assert seen(lake) == [1]
        move(lake)
    assert seen(lake) == [1, 2, 3]
    move(lake)
    assert cold(lake) == [1, 2, 3]


def test_a_range_of_aborted_records_moves_the_position_alone(lake: Lake, topic: Topic) -> None:
    topic.send([1])
    stand_in(lake)
    with topic.transaction(commit=False) as producer:
        producer.produce(TOPIC, value(66))
    move(lake)
    topic.cut(3)
    topic.send([2])
    assert seen(lake) == [1, 2]
    move(lake)
    assert cold(lake) == [1, 2]


def test_records_that_retention_took_are_told_and_the_others_are_moved_once(lake: Lake, topic: Topic) -> None:
    topic.widen(3)
    topic.send(range(3))
    topic.send(range(100, 103), partition=1)
    stand_in(lake)
    topic.send(range(3, 9))
    topic.send([103], partition=1)
    topic.send([200], partition=2)
    topic.cut(7)
    lost = r"kafka:events was read to \[3, 3, 0\], but now begins at \[7, 0, 0\]: 4 offsets"
    with pytest.raises(SourceLost, match=lost):
        seen(lake)
    text = refused(lake)
    assert re.search(lost, text)
    assert "lakehouse/accept_loss: true" in text
    result = lake.run(events_table(), tags={"lakehouse/accept_loss": "true"})
    assert result.success, failure_text(result)
    given_up = result.asset_materializations_for_node("demo__events")[0].metadata["given_up"].value
    assert given_up == "4 offsets that kafka:events has lost: 3 to 6 of partition 0"
    assert seen(lake) == cold(lake) == [0, 1, 2, 7, 8, 100, 101, 102, 103, 200]
    move(lake)
    assert cold(lake) == [0, 1, 2, 7, 8, 100, 101, 102, 103, 200]


@pytest.mark.usefixtures("topic")
def test_the_oldest_of_many_partitions_is_found_by_one_client(broker: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(broker.bootstrap, "wide", partitions=40)
    began = datetime.now(UTC)
    for partition in range(39, 0, -1):  # the last partition's are the oldest
        topic.send(range(20), partition=partition)
        if partition == 39:
            first_until = datetime.now(UTC)
            time.sleep(0.01)  # timestamps are in milliseconds
    made = list[object]()
    consumer = KafkaTopic._consumer
    monkeypatch.setattr(KafkaTopic, "_consumer", lambda self, *given: made.append(given) or consumer(self, *given))
    state = KafkaTopic("wide").state()
    lag = KafkaTopic("wide").lag(state, state.begin(None))
    assert (lag.depth, lag.rows) == (780, 780)
    assert lag.oldest is not None
    assert began - timedelta(milliseconds=1) <= lag.oldest <= first_until
    assert len(made) == 1


def test_nested_columns_are_moved_and_read_hot_alike(lake: Lake, topic: Topic) -> None:
    types = {"tags": "list<string>", "days": "list<date>", "at": "struct<day: date, times: list<timestamptz>>"}
    table = events_table(columns=[column("n", "long"), *(column(name, type_) for name, type_ in types.items())])
    instant = datetime(2013, 1, 31, 6, tzinfo=UTC)
    at = {"day": "2013-01-31", "times": ["2013-01-31T08:00:00+02:00"]}
    topic.send_raw(
        *(json.dumps({"n": n, "tags": ["a", None], "days": ["2013-01-31"], "at": at}).encode() for n in (1, 2))
    )
    rows = [
        {"n": n, "tags": ["a", None], "days": [date(2013, 1, 31)], "at": {"day": date(2013, 1, 31), "times": [instant]}}
        for n in (1, 2, 3)
    ]
    catalog = load_lake(lake.settings)
    hot = hot_and_cold(table, catalog=catalog).polars().collect()
    assert hot.sort("n").to_dicts() == rows[:2]
    result = lake.run(table)
    assert result.success, failure_text(result)
    topic.send_raw(json.dumps({"n": 3, "tags": ["a", None], "days": ["2013-01-31"], "at": at}).encode())
    both = hot_and_cold(table, catalog=catalog).polars().collect()
    assert both.sort("n").to_dicts() == rows
    topic.send_raw(b'{"N": 4}')
    with pytest.raises(BadValue, match="field 'N' differs from the column 'n' only in case") as error:
        hot_and_cold(table, catalog=catalog)
    assert "skip" not in str(error.value)


def test_offsets_that_are_gone_are_an_error_and_are_not_passed_over(topic: Topic) -> None:
    topic.send(range(9))
    topic.cut(4)
    with pytest.raises(SourceLost, match="partition 0 no longer has 2"):
        list(KafkaTopic("events").read(Split(0, 2, 9), hot_schema(events_table())))


def test_a_reader_that_is_slow_is_not_taken_for_a_silent_broker(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_source, "STUCK_SECONDS", 0.5)
    monkeypatch.setattr(kafka_source, "BATCH", 2)
    topic.send(range(6))
    rows = 0
    for batch in KafkaTopic("events").read(Split(0, 0, 6), hot_schema(events_table())):
        rows += batch.num_rows
        time.sleep(0.6)
    assert rows == 6


def test_a_topic_that_is_not_there_is_told(topic: Topic) -> None:
    with pytest.raises(SourceLost, match="kafka:nothing: the broker has no such topic"):
        KafkaTopic("nothing").state()


def test_retention_that_passes_while_a_reader_reads(lake: Lake, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    topic.send(range(6))
    stand_in(lake)
    topic.send(range(6, 9))
    read = KafkaTopic.read

    def cut_after(self: KafkaTopic, *arguments: object) -> Iterator[object]:
        yield from read(self, *arguments)  # type: ignore[arg-type]
        topic.cut(8)

    monkeypatch.setattr(KafkaTopic, "read", cut_after)
    with pytest.raises(SourceLost, match="2 offsets"):
        seen(lake)


def test_a_move_that_was_cherry_picked_is_told_and_moved_no_second_time(
    lake: Lake, topic: Topic, jvm: SparkSession
) -> None:
    topic.send([1])
    stand_in(lake)
    first = lake.table(events_table()).current_snapshot()
    topic.send([2])
    stand_in(lake)
    second = lake.table(events_table()).current_snapshot()
    lake.table(events_table()).manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    lake.table(events_table()).append(lake.rows(events_table()).slice(0, 0))  # by somebody else, so that it moves on
    spark = configure(jvm.newSession(), live_catalogs(catalog_properties(lake.settings)))
    spark.sql(f"CALL lake.system.cherrypick_snapshot('demo.events', {second.snapshot_id})")
    assert cold(lake) == [1, 2]
    for _ in range(2):
        with pytest.raises(SourceLost, match="was cherry-picked"):
            seen(lake)
        assert "was cherry-picked" in refused(lake)
        if lake.table(events_table()).snapshot_by_id(second.snapshot_id):  # what it was picked from expires
            lake.table(events_table()).maintenance.expire_snapshots().by_id(second.snapshot_id).commit()


def test_a_topic_that_was_made_again_is_another_one(lake: Lake, topic: Topic) -> None:
    topic.send(range(3))
    stand_in(lake)
    topic.create()
    topic.send(range(10, 15))
    with pytest.raises(SourceLost, match="kafka:events is not the one that was read"):
        seen(lake)
    assert "kafka:events is not the one that was read" in refused(lake)
    move(lake, **{"lakehouse/read_all": "true"})
    assert seen(lake) == [0, 1, 2, 10, 11, 12, 13, 14]


def test_a_partition_that_was_added_is_read_from_its_beginning(lake: Lake, topic: Topic) -> None:
    topic.send([1])
    stand_in(lake)
    topic.widen(3)
    topic.send([2], partition=2)
    topic.send([3])
    assert seen(lake) == [1, 2, 3]
    move(lake)
    assert cold(lake) == seen(lake) == [1, 2, 3]


def test_a_compacted_topic_is_refused(lake: Lake, broker: Kafka, topic: Topic) -> None:
    Topic(broker.bootstrap, "compacted", **{"cleanup.policy": "compact,delete"})  # a killed broker brings it back
    result = lake.run(events_table(source=KafkaTopic("compacted")))
    assert not result.success
    assert "cleanup.policy compact,delete" in failure_text(result)


def proposed(error: BadValue) -> list[str]:
    """What a message says to declare as ``skip``."""
    (named,) = re.findall(r"skip=\[(.+)\]\)", str(error))
    return re.findall("'([^']+)'", named)


def test_values_that_cannot_be_read_are_named_and_can_be_left_out(lake: Lake, topic: Topic) -> None:
    topic.send([0])
    topic.send_raw(b"{not json", b"", value(3))
    with pytest.raises(BadValue) as error:
        seen(lake)
    assert "record 0:1@" in refused(lake)
    first = proposed(error.value)[0]
    table = events_table(source=KafkaTopic("events", skip=[first, first.replace("0:1@", "0:2@")]))
    result = lake.run(table)
    assert result.success, failure_text(result)
    assert cold(lake) == [0, 3]


def test_records_of_a_topic_that_was_made_again_are_not_skipped(topic: Topic) -> None:
    topic.send_raw(b"{not json")
    schema = hot_schema(events_table())
    with pytest.raises(BadValue) as error:
        list(KafkaTopic("events").read(Split(0, 0, 1), schema))
    skip = proposed(error.value)
    assert not [*KafkaTopic("events", skip=skip).read(Split(0, 0, 1), schema)]
    topic.create()
    topic.send([7])
    (batch,) = KafkaTopic("events", skip=skip).read(Split(0, 0, 1), schema)
    assert batch["n"].to_pylist() == [7]


@pytest.mark.long("Fetches a registry of 109 MB; test_avro_value.py reads what a small one answers.")
def test_avro_records_of_two_versions_of_a_schema_are_moved(
    lake: Lake, topic: Topic, schema_registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCHEMA_REGISTRY_URL", schema_registry.url)
    base = {"type": "record", "name": "Base", "fields": [{"name": "id", "type": "long"}]}
    schema_registry.register("base", base)
    of_base = {"name": "Base", "subject": "base", "version": 1}
    before = {"type": "record", "name": "Event", "fields": [{"name": "n", "type": "int"}]}
    text = {"name": "text", "type": ["null", "string"], "default": None}
    more = [{"name": "n", "type": "long"}, text, {"name": "base", "type": ["null", "Base"], "default": None}]
    first = schema_registry.register("events-value", before)
    second = schema_registry.register("events-value", after := {**before, "fields": more}, of_base)
    after["fields"][2]["type"] = ["null", base]  # as it is written
    table = events_table(source=KafkaTopic("events", value=Avro()))
    topic.send_raw(
        framed(first, before, {"n": 1}),
        framed(second, after, {"n": 2, "text": "two", "base": {"id": 1}}),
        framed(first, before, {"n": 3}),
    )
    result = lake.run(table)
    assert result.success, failure_text(result)
    assert lake.rows(table).sort_by("n").to_pylist() == [
        {"n": 1, "text": None},
        {"n": 2, "text": "two"},
        {"n": 3, "text": None},
    ]
    topic.send_raw(framed(second, after, {"n": 4, "text": "four", "base": None}))
    catalog = load_lake(lake.settings)
    found = hot_and_cold(table, catalog=catalog).polars().collect()
    assert sorted(found["n"].to_list()) == [1, 2, 3, 4]
    topic.send_raw(framed(second + 1000, before, {"n": 5}))
    with pytest.raises(
        BadValue, match=rf"record 0:4@\S+ can't be read: the schema registry has no schema {second + 1000}"
    ):
        hot_and_cold(table, catalog=catalog)
    monkeypatch.setenv("SCHEMA_REGISTRY_URL", "http://127.0.0.1:1")
    with pytest.raises(SourceUnreachable, match=r"the schema registry can't be reached at http://127.0.0.1:1"):
        hot_and_cold(table, catalog=catalog)


def test_a_run_moves_no_more_than_its_ceiling(lake: Lake, topic: Topic) -> None:
    topic.widen(2)
    topic.send(range(30))
    topic.send(range(30, 40), partition=1)
    table = events_table(source=KafkaTopic("events", ceiling=8))
    assert lake.run(table).success
    assert len(cold(lake)) == 8
    assert seen(lake) == [*range(40)]
    for _ in range(5):
        assert lake.run(table).success
    assert cold(lake) == [*range(40)]


def test_a_reader_takes_no_more_than_it_would(lake: Lake, topic: Topic) -> None:
    topic.send(range(20))
    with pytest.raises(TooMuchHot, match=r"more than 10 rows .* materialize demo/events, or raise limit_hot"):
        hot_and_cold(events_table(), limit_hot=10, catalog=load_lake(lake.settings))


@pytest.mark.slow("A real broker that is killed and started again.")
def test_a_broker_that_dies_and_comes_back(
    lake: Lake, broker: Kafka, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.send(range(4))
    stand_in(lake)
    topic.send([4])
    monkeypatch.setattr(kafka_source, "SECONDS", 1.0)
    broker.stop()
    with pytest.raises(SourceUnreachable, match="kafka:events can't be reached"):
        KafkaTopic("events").state()
    assert "kafka:events can't be reached" in refused(lake)
    broker.start()
    monkeypatch.setattr(kafka_source, "SECONDS", 15.0)
    deadline = time.monotonic() + 30
    while seen(lake) != [*range(5)] and time.monotonic() < deadline:
        time.sleep(0.2)
    stand_in(lake)
    assert cold(lake) == seen(lake) == [*range(5)]
