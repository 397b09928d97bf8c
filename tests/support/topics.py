"""Topics for tests: made, written to, cut off and made again on a real broker."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

TOPIC = "events"
SECONDS = 20


class Topic:
    """A topic of a broker, empty at first."""

    def __init__(self, bootstrap: str, name: str = TOPIC, partitions: int = 1, **config: str) -> None:
        self.name = name
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": "0"})
        self.bootstrap = bootstrap
        self.producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": "0"})
        self.create(partitions, **config)

    def create(self, partitions: int = 1, **config: str) -> None:
        """Creates the topic; one of the same name is deleted before."""
        deadline = time.monotonic() + SECONDS
        while True:
            with suppress(KafkaException):  # there is none
                self.admin.delete_topics([self.name])[self.name].result(SECONDS)
            try:
                new = NewTopic(self.name, partitions, 1, config=config)
                self.admin.create_topics([new])[self.name].result(SECONDS)
                return
            except KafkaException:  # it is still being deleted
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def widen(self, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(self.name, partitions)])[self.name].result(SECONDS)
        # A producer asks for partitions every five minutes, and a broker may not know them at once.
        self.producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5, "log_level": "0"})
        while len(self.producer.list_topics(self.name, SECONDS).topics[self.name].partitions) < partitions:
            time.sleep(0.05)

    def send(self, numbers: Sequence[int], partition: int = 0) -> None:
        """Writes a record for each number, and waits until the broker has them."""
        for n in numbers:
            self.producer.produce(self.name, value(n), partition=partition)
        assert self.producer.flush(SECONDS) == 0

    def send_raw(self, *values: bytes, partition: int = 0) -> None:
        for one in values:
            self.producer.produce(self.name, one, partition=partition)
        assert self.producer.flush(SECONDS) == 0

    def cut(self, before: int, partition: int = 0) -> None:
        """Deletes the records before an offset, as retention does."""
        part = TopicPartition(self.name, partition, before)
        self.admin.delete_records([part])[part].result(SECONDS)

    @contextmanager
    def transaction(self, name: str = "writer", *, commit: bool = True) -> Iterator[Producer]:
        """A producer whose records are committed, or aborted, at the end."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": name, "log_level": "0"})
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        yield producer
        producer.flush(SECONDS)
        if commit:
            producer.commit_transaction(SECONDS)
        else:
            producer.abort_transaction(SECONDS)


def value(n: int) -> bytes:
    """The value of a record."""
    return json.dumps({"n": n, "text": f"event {n}"}).encode()
