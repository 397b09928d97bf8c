"""Reading a topic and its table again and again: what was read before is kept, and no row comes twice or is missing.
What a single read must do is in test_kafka_source.py."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import patch

import pytest
from psycopg2.extensions import connection as Connection
from pyiceberg.catalog import Catalog

from lakehouse_assets.declare.row_source import Split
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.errors import TooMuchHot
from lakehouse_assets.extensions.sources.hot_and_cold import HotAndCold, HotRows, hot_and_cold
from lakehouse_assets.extensions.sources.kafka import KafkaTopic
from tests.conftest import Lake
from tests.support.hot_tables import UPSERT, events_table, state_table
from tests.support.standin_mover import made, moving
from tests.support.topics import Topic

pytestmark = pytest.mark.server
TABLE = events_table()


@pytest.fixture
def catalog(lake: Lake) -> Catalog:
    catalog = load_lake(lake.settings)
    made(catalog, TABLE)
    return catalog


@pytest.fixture
def asked() -> Iterator[list[Split]]:
    """The splits that the topic was asked for."""
    found, read = list[Split](), KafkaTopic.read

    def noted(topic: KafkaTopic, split: Split, *arguments: object) -> object:
        found.append(split)
        return read(topic, split, *arguments)  # type: ignore[arg-type]

    with patch.object(KafkaTopic, "read", noted):
        yield found


def move(catalog: Catalog, ceiling: int = 100) -> None:
    for _ in moving(catalog, limited(ceiling)):
        pass


def limited(ceiling: int) -> Table:
    return replace(TABLE, source=KafkaTopic("events", ceiling=ceiling))


def numbers(read: HotAndCold) -> list[int]:
    return sorted(read.polars().collect()["n"].to_list())


def test_only_new_records_are_read_again(catalog: Catalog, topic: Topic, asked: list[Split]) -> None:
    topic.send(range(3))
    read = hot_and_cold(TABLE, catalog=catalog)
    topic.send(range(3, 5))
    read = read.again()
    assert asked == [Split(0, 0, 3), Split(0, 3, 5)]
    assert numbers(read) == [*range(5)]
    assert numbers(read.again()) == [*range(5)]
    assert len(asked) == 2


def test_what_was_moved_in_part_is_read_from_there_on(catalog: Catalog, topic: Topic, asked: list[Split]) -> None:
    topic.send(range(5))
    read = hot_and_cold(TABLE, catalog=catalog)
    topic.send(range(5, 8))
    move(catalog, ceiling=2)
    asked.clear()
    assert numbers(read.again()) == [*range(8)]
    assert asked == [Split(0, 2, 5), Split(0, 5, 8)]


def test_nothing_is_kept_of_a_topic_that_was_made_again(catalog: Catalog, topic: Topic) -> None:
    topic.send(range(3))
    read = hot_and_cold(TABLE, catalog=catalog)
    topic.create()
    topic.send([7, 8, 9, 10])
    assert numbers(read.again()) == [7, 8, 9, 10]


def test_rows_of_postgresql_are_read_anew(catalog: Catalog, database: Connection) -> None:
    table = state_table()
    made(catalog, table)
    with database.cursor() as cursor:
        cursor.execute(UPSERT, (1, "a", False))
        read = hot_and_cold(table, catalog=catalog)
        cursor.execute(UPSERT, (1, "b", False))
        cursor.execute(UPSERT, (2, "c", False))
    assert sorted(read.again().polars().collect().rows()) == [(1, "b"), (2, "c")]


def test_the_limit_holds_for_all_rows_that_are_hot(catalog: Catalog, topic: Topic) -> None:
    topic.send(range(3))
    read = hot_and_cold(TABLE, catalog=catalog, limit_hot=4)
    topic.send(range(3, 5))
    with pytest.raises(TooMuchHot):
        read.again()
    move(catalog)
    assert numbers(read.again()) == [*range(5)]


def wrong_reads(catalog: Catalog, topic: Topic, reads: int) -> int:
    """How many of some reads lacked a record or had one twice, while others write and move between all of them."""
    chance, sent, wrong, mover = random.Random(1), 0, 0, iter(())
    read = hot_and_cold(TABLE, catalog=catalog)
    for _ in range(reads):
        for _ in range(chance.choice([0, 1, 3])):
            if chance.random() < 0.5:
                count = chance.randint(1, 5)
                topic.send(range(sent, sent + count), partition=chance.randint(0, 1))
                sent += count
            elif next(mover, "ended") == "ended":
                mover = moving(catalog, limited(chance.randint(1, 9)))
        read = read.again()
        wrong += numbers(read) != [*range(sent)]
    assert read.position is not None
    return wrong


def test_no_read_among_many_is_wrong(catalog: Catalog, topic: Topic) -> None:
    topic.widen(2)
    assert wrong_reads(catalog, topic, 40) == 0


def test_reads_that_keep_too_much_or_too_little_are_wrong(catalog: Catalog, topic: Topic) -> None:
    topic.widen(2)

    def kept_whole(before: HotRows, split: Split) -> list[Split]:
        """Keeps a split that begins before the position."""
        known = [one for one in before.by_split if one.partition == split.partition and (one.end or 0) > split.begin]
        end = max((one.end or 0 for one in known), default=split.begin)
        return [*known, *([Split(split.partition, end, split.end)] if end < (split.end or 0) else [])]

    with patch.object(HotRows, "splits_of", kept_whole):
        assert wrong_reads(catalog, topic, 40) > 0
