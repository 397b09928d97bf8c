"""Kafka topics as sources, configured by KAFKA_BOOTSTRAP_SERVERS and variables named likewise.

The last *stable* offset of a partition is before its oldest open transaction; rows up to there are safe to move.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from lakehouse_assets.declare.row_source import Lag, Offsets, RowSource, SourceState, Split, named_settings
from lakehouse_assets.errors import BadValue, SourceLost, SourceUnreachable
from lakehouse_assets.extensions.sources.values import Avro, Json, OtherCase

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Consumer, Message
    from confluent_kafka.admin import AdminClient, TopicDescription

SETTINGS = ("bootstrap.servers", "security.protocol", "client.", "sasl.", "ssl.", "broker.address.", "socket.")
"""Prefixes of settings that the environment may give
(https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md)."""
SKIPPED = re.compile(r"\d+:\d+@\S+")
"""An entry of KafkaTopic.skip."""
SECONDS = 15.0
"""The limit of a request to the broker."""
STUCK_SECONDS = 60.0
"""Without an expected record for so long, the broker counts as unreachable."""
BATCH = 10_000
"""The most records that are read at once."""
FOR_EVER_MS = 10**15
"""Thirty thousand years, from which on a retention counts as none: some write the largest long."""
NAMED = 100
"""The most records that an error names."""
LITTLE = {"fetch.message.max.bytes": 16_384, "queued.min.messages": 1}
"""Fetches little more than first records."""


@dataclass(frozen=True)
class KafkaTopic(RowSource):
    """A Kafka topic whose records are moved into a table that is declared Append.

    Examples:
        >>> from lakehouse_assets import Append, KafkaTopic, Table, column
        >>> columns = [column("id", "long"), column("at", "timestamptz")]
        >>> Table("shop.clicks", columns, source=KafkaTopic("clicks"), write_mode=Append()).source.topic
        'clicks'
    """

    topic: str = field(kw_only=False)
    """The topic's name. A compacted topic is refused, because it does not keep its records."""
    value: Json | Avro = field(default=Json(), kw_only=False)
    """How a record's value becomes a row."""
    skip: Sequence[str] = ()
    """Records to leave out, such as one whose value can't be read: each as ``<partition>:<offset>@<topic id>``, as in
    the message that names it."""

    @property
    def name(self) -> str:
        """The topic's name in positions."""
        return f"kafka:{self.topic}"

    def problems(self, columns: Mapping[str, str], write_mode: object) -> Iterator[str]:
        """Requires a plain Append, well-formed skips and readable types."""
        if not getattr(write_mode, "adds_again", False):
            yield f"a KafkaTopic needs Append() without dedup_on, which adds each record once; found {write_mode!r}"
        if bad := [one for one in self.skip if not SKIPPED.fullmatch(one)]:
            yield (
                f"KafkaTopic has skip={bad}, expected entries of the form partition:offset@topic-id, as the failed run "
                "prints them"
            )
        yield from self.value.problems(columns)

    def state(self, position: Offsets | None = None) -> SourceState:
        """Asks the broker for the topic's id, offsets and retention. Raises SourceLost also for a compacted topic."""
        from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
        from confluent_kafka.admin import ConfigResource, OffsetSpec, ResourceType

        try:
            admin = self._admin()
            found = self._described(admin)
            resource = ConfigResource(ResourceType.TOPIC, self.topic)
            config = admin.describe_configs([resource], request_timeout=SECONDS)[resource].result()
            parts = [TopicPartition(self.topic, n) for n in range(len(found.partitions))]

            def offsets(spec: OffsetSpec, level: IsolationLevel) -> tuple[int, ...]:
                futures = admin.list_offsets(dict.fromkeys(parts, spec), isolation_level=level, request_timeout=SECONDS)
                return tuple(futures[part].result().offset for part in parts)

            # The earliest offsets come last: retention may delete records between these requests.
            newest = offsets(OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)
            safe = offsets(OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)
            first = offsets(OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED)
        except KafkaException as error:
            raise self._failure(error) from error
        if "compact" in (config["cleanup.policy"].value or ""):
            raise SourceLost(
                f"{self.name} has cleanup.policy {config['cleanup.policy'].value}: a compacted topic silently loses "
                "records; set cleanup.policy to delete"
            )
        # Kafka's -1 means no limit.
        kept_ms = int(config["retention.ms"].value or -1)
        retention = timedelta(milliseconds=kept_ms) if 0 <= kept_ms < FOR_EVER_MS else None
        return SourceState(str(found.topic_id), first, safe, newest, retention)

    def bound(self, state: SourceState, begin: Offsets) -> Offsets:
        """Returns the last stable offsets or, above ``ceiling``, an equal share of each partition."""
        spans = begin.spans(Offsets(state.identity, state.safe))
        total = sum(end - start for start, end in spans.values())
        if total <= self.ceiling:
            return Offsets(state.identity, state.safe)
        to = [*begin.widened(len(state.safe)).by_partition]
        for number, (start, end) in spans.items():
            # start - end is negative, so // rounds the share up: each partition moves.
            to[number] = start - (start - end) * self.ceiling // total
        return Offsets(state.identity, tuple(to))

    def lag(self, state: SourceState, begin: Offsets) -> Lag:
        """Counts offsets; reads the first unmoved record of each partition, for its time."""
        spans = begin.spans(Offsets(state.identity, state.safe))
        depth = sum(state.newest) - sum(state.first)
        times = [message.timestamp()[1] for found in self._records(spans, first_only=True) for message in found]
        oldest = datetime.fromtimestamp(min(times) / 1000, UTC) if times else None
        return Lag(depth, sum(end - start for start, end in spans.values()), oldest)

    def visible(self, state: SourceState, begin: Offsets) -> Sequence[Split]:
        """Returns a split for each partition, up to its last stable offset."""
        return [Split(n, *span) for n, span in begin.spans(Offsets(state.identity, state.safe)).items()]

    def read(self, split: Split, schema: pa.Schema, limit: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yields the committed records, without skipped ones; stops after the batch that reaches ``limit``."""
        left_out = self._left_out(split.partition) if self.skip else set()
        assert split.end is not None
        rows = 0
        for messages in self._records({split.partition: (split.begin, split.end)}):
            kept = [message for message in messages if message.offset() not in left_out]
            if kept:
                yield self._parsed(kept, schema)
                rows += len(kept)
            if limit is not None and rows >= limit:
                return

    def _left_out(self, partition: int) -> set[int]:
        """Returns the partition's offsets to skip, without those of an earlier topic of this name."""
        identity = self._identity()
        named = [re.split("[:@]", one, maxsplit=2) for one in self.skip]
        return {int(offset) for of, offset, topic in named if (int(of), topic) == (partition, identity)}

    def _parsed(self, messages: Sequence[Message], schema: pa.Schema) -> pa.RecordBatch:
        """Returns the rows of these records. Raises BadValue, which names all unreadable ones."""
        try:
            # b"": a record without a value can't be read either.
            return self.value.parse([message.value() or b"" for message in messages], schema)
        # A fault of the declaration: skipping such records would lose good ones.
        except OtherCase as error:
            raise BadValue(f"{self.name}: {error}") from None
        except ValueError as error:
            identity, bad = self._identity(), dict[str, str]()
            for message in messages:
                try:
                    self.value.parse([message.value() or b""], schema)
                except OtherCase:
                    continue  # not a fault of the record
                except ValueError as found:
                    bad[f"{message.partition()}:{message.offset()}@{identity}"] = str(found)
            if not bad:
                raise BadValue(f"{self.name}: values can't be read: {error}") from error
            raise BadValue(f"{self.name}: {bad_records(bad)}") from None

    def _records(
        self, spans: Mapping[int, tuple[int, int]], *, first_only: bool = False
    ) -> Iterator[Sequence[Message]]:
        """Yields committed records, in order within each partition. first_only: one of each partition."""
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        if not spans:
            return
        # A range is read once the consumer gets past it, to a later record or the partition's end. Its last offsets may
        # have no record: aborted records and transaction markers have offsets too.
        reached = {number: begin for number, (begin, _) in spans.items()}
        left, heard = set(spans), time.monotonic()
        consumer = self._consumer(LITTLE if first_only else {})
        try:
            consumer.assign([TopicPartition(self.topic, number, begin) for number, begin in reached.items()])
            while left:
                found = []
                # Waits 20 ms at most for a full batch.
                for message in consumer.consume(BATCH, timeout=0.02):
                    number, offset = message.partition() or 0, message.offset() or 0
                    if (error := message.error()) is None:
                        heard = time.monotonic()
                        reached[number] = max(reached[number], offset + 1)
                        if number in left and offset < spans[number][1]:
                            found.append(message)
                            if first_only:
                                reached[number] = spans[number][1]
                    elif error.code() == KafkaError._PARTITION_EOF:
                        reached[number] = max(reached[number], offset)
                    elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                        raise SourceLost(f"{self.name}: partition {number} no longer has {reached[number]}: {error}")
                    elif error.fatal() or not error.retriable():
                        raise self._failure(KafkaException(error))
                    if number in left and reached[number] >= spans[number][1]:
                        left.remove(number)
                        consumer.pause([TopicPartition(self.topic, number)])
                if found:
                    yield found
                    # The caller may have taken any time with these.
                    heard = time.monotonic()
                if left and time.monotonic() - heard > STUCK_SECONDS:
                    where = ", ".join(f"{reached[number]} to {spans[number][1]}" for number in sorted(left)[:NAMED])
                    raise SourceUnreachable(f"{self.name}: received no record of {where} for {STUCK_SECONDS} s")
        except KafkaException as error:
            raise self._failure(error) from error
        finally:
            consumer.close()

    def _identity(self) -> str:
        from confluent_kafka import KafkaException

        try:
            return str(self._described(self._admin()).topic_id)
        except KafkaException as error:
            raise self._failure(error) from error

    def _described(self, admin: AdminClient) -> TopicDescription:
        from confluent_kafka import TopicCollection

        asked = admin.describe_topics(TopicCollection([self.topic]), request_timeout=SECONDS)
        return asked[self.topic].result()

    def _admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        return AdminClient(client_settings())

    def _consumer(self, settings: Mapping[str, int]) -> Consumer:
        from confluent_kafka import Consumer

        return Consumer(
            {
                **client_settings(),
                **settings,
                "group.id": "lakehouse",  # required; nothing is ever committed to it
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",  # else records that retention deleted are skipped silently
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,  # how soon the end of a partition is reported
                "allow.auto.create.topics": False,
            }
        )

    def _failure(self, error: Any) -> SourceLost | SourceUnreachable:
        from confluent_kafka import KafkaError

        code = error.args[0].code() if error.args and isinstance(error.args[0], KafkaError) else None
        if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.UNKNOWN_TOPIC_ID):
            return SourceLost(f"{self.name}: the broker has no such topic: create it, or correct its name")
        return SourceUnreachable(
            f"{self.name} can't be reached at {os.environ.get('KAFKA_BOOTSTRAP_SERVERS')}: {error}"
        )


def bad_records(bad: Mapping[str, str]) -> str:
    """Returns what to do about unreadable records. bad: reasons by record as in ``skip``."""
    where, why = next(iter(bad.items()))
    others = f" {len(bad) - 1:,} more after it can't be read either." if len(bad) > 1 else ""
    return (
        f"the value of the record {where} can't be read: {why}.{others} To skip unreadable records, declare "
        f"KafkaTopic(skip={[*bad][:NAMED]})"
    )


def client_settings() -> dict[str, str]:
    """Returns the environment's settings: KAFKA_SASL_USERNAME is ``sasl.username``.

    Raises SourceUnreachable without KAFKA_BOOTSTRAP_SERVERS.
    """
    found = {name: value for name, value in named_settings("KAFKA_").items() if name.startswith(SETTINGS)}
    if "bootstrap.servers" not in found:
        raise SourceUnreachable("KAFKA_BOOTSTRAP_SERVERS is not set: no topic can be reached")
    return {"log_level": "0", "socket.timeout.ms": str(round(SECONDS * 1000)), **found}
