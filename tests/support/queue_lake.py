"""The queue of one test: the fake SQS on loopback, the sensor's ticks in this process, and the runs that they ask for.
What SQS does is in fakes/sqs_service.py."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
import pytest

from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.settings import Settings, read_settings
from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.extensions.queue.hook import inbox_of
from lakehouse_assets.extensions.queue.inbox import Item
from lakehouse_assets.extensions.queue.sensor import queue_sensor
from lakehouse_assets.extensions.queue.source import sqs_client
from lakehouse_assets.run.asset import table_asset
from tests.support.fakes.sqs_service import ACCOUNT, REGION, FakeSqs
from tests.support.fakes.wire import Service, serving
from tests.support.faults import FaultyLake, FaultyLakehouse

QUEUE, DEAD = "lakehouse", "lakehouse-dead-letters"


@contextmanager
def sqs_on_loopback(fake: FakeSqs) -> Iterator[tuple[Service, dict[str, str]]]:
    """The service, and the environment of who uses it."""
    with serving(Service("sqs", fake)) as service:
        fake.base = service.url
        yield (
            service,
            {
                "AWS_ENDPOINT_URL_SQS": service.url,
                "AWS_DEFAULT_REGION": REGION,
                "AWS_ACCESS_KEY_ID": "nobody",
                "AWS_SECRET_ACCESS_KEY": "nothing",
                "LAKEHOUSE_QUEUE": f"{service.url}/{ACCOUNT}/{QUEUE}",
                "LAKEHOUSE_QUEUE_DEAD_LETTERS": f"{service.url}/{ACCOUNT}/{DEAD}",
            },
        )


def dead_letters(fake: FakeSqs) -> list[tuple[str, str]]:
    """Body and reason of each."""
    found = list(fake.queues[DEAD].messages.values())
    return [(m.body, m.attributes.get("reason", {}).get("StringValue", "")) for m in found]


@dataclass
class QueueLake:
    """Ticks, one after the other. now: seconds since 1970, of the sensor's clock and of SQS's. evaluations: of checks,
    by all ticks."""

    lake: FaultyLake
    fake: FakeSqs
    service: Service
    tables: Sequence[Table]
    now: float = field(default_factory=time.time)
    cursor: str | None = None
    data: Any = None
    evaluations: list[dg.AssetCheckEvaluation] = field(default_factory=list)

    def send(self, body: str | dict[str, Any]) -> None:
        text = body if isinstance(body, str) else json.dumps(body)
        self.fake.send_message(QueueUrl=self.fake.url(QUEUE), MessageBody=text)

    def ask(self, *keys: str, table: Table | None = None) -> None:
        """The message that asks for these partitions."""
        self.send({"table": (table or self.tables[0]).identifier, "partitions": list(keys)})

    def tick(self, seconds: float = 10.0) -> list[dg.RunRequest]:
        """What is asked for, so many seconds after the last tick."""
        self.now += seconds
        settings = self.lake.settings
        assert settings.queue
        sensor = queue_sensor(self.tables, settings.queue, dg.DefaultSensorStatus.STOPPED, lambda: self.now)
        context = dg.build_sensor_context(
            self.lake.instance,
            self.cursor,
            definitions=self._definitions(),
            resources={"lakehouse": FaultyLakehouse(settings)},
        )
        self.data = sensor.evaluate_tick(context)
        self.cursor = self.data.cursor
        self.evaluations += [e for e in self.data.asset_events if isinstance(e, dg.AssetCheckEvaluation)]
        return list(self.data.run_requests or ())

    @property
    def said(self) -> str:
        """By the last tick, if it asked for no run."""
        return self.data.skip_message or ""

    def run(self, request: dg.RunRequest, **tags: str) -> dg.ExecuteInProcessResult:
        """As the daemon does: a run of the request's partitions with the request's tags. tags: more of them."""
        job = self._definitions().resolve_implicit_global_asset_job_def()
        return job.execute_in_process(
            instance=self.lake.instance,
            tags={"dagster/run_key": request.run_key or "", **request.tags, **tags},
            asset_selection=list(request.asset_selection or ()),
            partition_key=request.partition_key,
            raise_on_error=False,
        )

    def _definitions(self) -> dg.Definitions:
        resources = {"lakehouse": FaultyLakehouse(self.lake.settings)}
        return dg.Definitions([*(table_asset(table, EXTENSIONS) for table in self.tables)], resources=resources)

    def settle(self, ticks: int = 10, seconds: float = 10.0) -> int:
        """Tick and run until nothing is asked for. Returns how many runs it took. seconds: between ticks."""
        runs = 0
        for _ in range(ticks):
            requests = self.tick(seconds)
            runs += len(requests)
            for request in requests:
                self.run(request)
            if not requests:
                return runs
        raise AssertionError(f"still asking after {ticks} ticks")

    def waiting(self) -> dict[str, Item]:
        return inbox_of(FaultyLakehouse(self.lake.settings)).waiting()

    def dead(self) -> list[tuple[str, str]]:
        return dead_letters(self.fake)


@contextmanager
def queue_lake(
    settings: Settings, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, *tables: Table, **fake: Any
) -> Iterator[QueueLake]:
    """settings: those of the test, to which the queue's are added."""
    made = FakeSqs(QUEUE, DEAD, **fake)
    with sqs_on_loopback(made) as (service, env):
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        sqs_client.cache_clear()
        found = QueueLake(FaultyLake(read_settings(), instance), made, service, tables)
        made.clock = lambda: found.now
        yield found
        sqs_client.cache_clear()
