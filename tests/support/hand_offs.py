"""A table that is handed off, whose rows tell their generation, and readers who find it as Athena and Spark do.
The lake is a SQLite catalog on this machine; the hand-off's place, the staging prefix and Glue are on moto."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import Request, urlopen

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table as IcebergTable

from lakehouse_assets.declare.columns import column, schema_of
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.extensions.hand_off.hand_off_asset import HandOff
from lakehouse_assets.extensions.hand_off.hand_over import HandOffOutcome, HandOver, Services
from lakehouse_assets.extensions.hand_off.records import Clock
from lakehouse_assets.maintenance.collect.needed import Chain
from lakehouse_assets.run.resource import Lakehouse
from tests.support.aws_wire import Wire, client
from tests.support.servers import ACCESS_KEY, PLAIN_BUCKET, REGION, SECRET_KEY, configured

SOURCE = Table(
    "demo.source",
    [column("n", "long", "The generation"), column("day", "date"), column("at", "timestamptz")],
    "tests.support.steps:whole",
)
PLACE, REPLICA = f"s3://{PLAIN_BUCKET}/exports/source", "s3://replica-eu/exports/source"
HAND_OFF = HandOff("demo", SOURCE, PLACE, glue="partners.source", partitioned_by=["day"])
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
STEPS = (*("decide", "begin_version", "write", "check_written", "verify_replicas", "register", "switch", "clean_up"),)
"""What a hand-off does, in order, by the names of the methods."""


def rows(generation: int) -> pa.Table:
    """The rows of a generation: it is in each of them, and how many they are tells it as well."""
    days = [date(2026, 1, 1 + i % 3) for i in range(generation * 3)]
    at = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=i) for i in range(generation * 3)]
    generations = pa.array([generation] * len(days), pa.int64())
    return pa.table({"n": generations, "day": pa.array(days, pa.date32()), "at": pa.array(at, UTC_MICROS)})


UTC_MICROS = pa.timestamp("us", "UTC")


class Killed(BaseException):
    """Stands for the death of a process: nobody catches it, and no code cleans up behind it."""


@dataclass
class SimulatedClock:
    """A clock that goes on only where somebody waits; what is due happens then."""

    time: datetime = BEGINNING
    due: list[tuple[timedelta, Callable[[], object]]] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.time += timedelta(seconds=seconds)
        for one in [one for one in self.due if BEGINNING + one[0] <= self.time]:
            self.due.remove(one)
            one[1]()

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.time, self.sleep)


@dataclass
class HandOffLake:
    """The lake of the environment."""

    moto: str
    """Where moto is, past any wire."""
    hand_off: HandOff = HAND_OFF
    clock: SimulatedClock = field(default_factory=SimulatedClock)
    runs: dict[str, Chain] = field(default_factory=dict)
    """What Dagster knows of runs."""
    services: dict[dg.AssetKey, Services] = field(default_factory=dict)
    """The clients, which take a second to make."""

    @property
    def lakehouse(self) -> Lakehouse:
        return Lakehouse(read_settings())

    @property
    def catalog(self) -> Catalog:
        return self.lakehouse.catalog()

    @property
    def source(self) -> IcebergTable:
        return self.catalog.load_table(SOURCE.identifier)

    def write(self, generation: int) -> None:
        self.catalog.create_namespace_if_not_exists("demo")
        schema = schema_of(SOURCE.columns)
        self.catalog.create_table_if_not_exists(SOURCE.identifier, schema).overwrite(rows(generation))

    def hand_over(self, token: str, **options: Any) -> HandOver:
        """One process's part of a hand-off. options: of the declaration."""
        declared = replace(self.hand_off, **options)
        order = declared.order(token, self.lakehouse)
        if declared.key not in self.services:
            with dg.DagsterInstance.ephemeral() as instance:
                self.services[declared.key] = declared.services(instance, self.lakehouse)
        own = replace(self.services[declared.key], clock=self.clock.clock, chains_of=self.chains_of)
        return HandOver(order, own)

    def run(self, token: str, **options: Any) -> HandOffOutcome:
        """A run that ends well."""
        outcome = self.hand_over(token, **options).run()
        self.finished(token)
        return outcome

    def finished(self, token: str, *, succeeded: bool = True) -> None:
        created = round(self.clock.time.timestamp() * 1000)
        self.runs[token] = Chain(created, unfinished=False, succeeded=succeeded)

    def chains_of(self, tokens: Collection[str]) -> Mapping[str, Chain]:
        alive = Chain(0, unfinished=True, succeeded=False)
        return {token: self.runs.get(token, alive) for token in tokens}

    @property
    def reader(self) -> Reader:
        return Reader(client("glue", self.moto), client("s3", self.moto))

    def objects(self, bucket: str = PLAIN_BUCKET, prefix: str = "exports/") -> list[str]:
        return self.reader.keys(bucket, prefix)

    def tables(self) -> list[str]:
        """The tables in Glue, the view left out."""
        found = client("glue", self.moto).get_tables(DatabaseName="partners")["TableList"]
        return sorted(one["Name"] for one in found if one["TableType"] != "VIRTUAL_VIEW")

    def replicate(self, bucket: str = "replica-eu") -> None:
        """Copies all that is handed off, as S3 does by itself in its own time."""
        s3 = client("s3", self.moto)
        for key in self.objects():
            s3.copy_object(Bucket=bucket, Key=key, CopySource={"Bucket": PLAIN_BUCKET, "Key": key})


@contextmanager
def hand_off_lake(wire: Wire, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[HandOffLake]:
    """A lake whose hand-offs go over the wire, with an empty bucket for replicas and a database in Glue."""
    configured(
        {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": (folder / "warehouse").as_uri(),
            "s3.endpoint": wire.uri,
            "s3.access-key-id": ACCESS_KEY,
            "s3.secret-access-key": SECRET_KEY,
            "s3.region": REGION,
        },
        patch,
    )
    for name, value in {
        "LAKEHOUSE_HOME": str(folder / "home"),
        "LAKEHOUSE_STAGING": f"s3://{PLAIN_BUCKET}/staging",
        "AWS_ENDPOINT_URL_GLUE": wire.uri,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": REGION,
    }.items():
        patch.setenv(name, value)
    # What botocore waits between the tries of one call is no part of the tests.
    patch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=lambda seconds: None, time=time.time))
    emptied(wire)
    yield HandOffLake(wire.target)


def emptied(wire: Wire) -> None:
    """Has nothing on moto but the database and two empty buckets."""
    with urlopen(Request(f"{wire.target}/moto-api/reset", method="POST")) as answer:
        assert answer.status == 200
    wire.client("glue").create_database(DatabaseInput={"Name": "partners"})
    for bucket in (PLAIN_BUCKET, "replica-eu"):
        wire.client("s3").create_bucket(Bucket=bucket)
    wire.calls.clear()


class WrongRead(AssertionError):
    """A reader found no whole version."""


@dataclass(frozen=True)
class Reader:
    """A reader who knows no Iceberg, and none of this library's code."""

    glue: Any
    s3: Any

    def table_of(self, name: str = "source") -> str | None:
        """The table to which the view leads, for Athena and for Spark; None without the view."""
        try:
            view = self.glue.get_table(DatabaseName="partners", Name=name)["Table"]
        except self.glue.exceptions.EntityNotFoundException:
            return None
        (encoded,) = re.fullmatch(r"/\* Presto View: (\S+) \*/", view["ViewOriginalText"]).groups()  # type: ignore[union-attr]
        athena = json.loads(base64.b64decode(encoded))
        (of_athena,) = re.findall(r'FROM "partners"\."(\w+)"', athena["originalSql"])
        (of_spark,) = re.findall(r"FROM `partners`\.`(\w+)`", view["ViewExpandedText"])
        if of_athena != of_spark:
            raise WrongRead(f"Athena reads {of_athena}, Spark {of_spark}")
        return str(of_athena)

    def read(self, name: str = "source", between: Callable[[], object] = lambda: None) -> list[dict[str, Any]] | None:
        """All rows, step by step. between: what happens between the steps; None: there is no such name yet."""
        table = self.table_of(name)
        if table is None:
            return None
        between()
        found = self.glue.get_table(DatabaseName="partners", Name=table)["Table"]
        keys = [one["Name"] for one in found["PartitionKeys"]]
        between()
        pages = self.glue.get_paginator("get_partitions").paginate(DatabaseName="partners", TableName=table)
        partitions = [one for page in pages for one in page["Partitions"]]
        places = [
            (one["StorageDescriptor"]["Location"], dict(zip(keys, one["Values"], strict=True))) for one in partitions
        ]
        if not keys:
            places = [(found["StorageDescriptor"]["Location"], {})]
        between()
        return [row for place, values in places for row in self._rows(place, values, between)]

    def _rows(self, place: str, values: dict[str, str], between: Callable[[], object]) -> Iterator[dict[str, Any]]:
        bucket, _, prefix = place.removeprefix("s3://").partition("/")
        for key in self.keys(bucket, prefix):
            between()
            content = self.s3.get_object(Bucket=bucket, Key=key)["Body"].read()
            yield from ({**row, **values} for row in pq.read_table(pa.BufferReader(content)).to_pylist())

    def keys(self, bucket: str, prefix: str) -> list[str]:
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return sorted(one["Key"] for page in pages for one in page.get("Contents", ()))

    def generation(self, between: Callable[[], object] = lambda: None) -> int:
        """The generation that the name has, 0 before the first one. Raises WrongRead where it is not whole."""
        try:
            found = self.read(between=between)
        except Exception as error:
            raise WrongRead(f"it can't be read: {error!r}") from error
        if found is None:
            return 0
        generations = {row["n"] for row in found}
        if len(generations) != 1 or len(found) != 3 * max(generations):
            raise WrongRead(f"{len(found)} rows of the generations {generations}")
        return int(max(generations))


def before(patch: pytest.MonkeyPatch, step: str, act: Callable[[], object]) -> None:
    """Acts once, right before a step of the next hand-off that comes to it."""
    method = getattr(HandOver, step)
    acts = [act]

    def acting(*arguments: Any, **options: Any) -> Any:
        if acts:
            acts.pop()()
        return method(*arguments, **options)

    patch.setattr(HandOver, step, acting)
