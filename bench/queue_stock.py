"""The code location beside the queue's: a sensor as stock ones are, for the same tables and the same messages.
It deletes what it receives, and asks for a run for each message. Measured in queue.py."""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

import json
from collections.abc import Iterator

import dagster as dg

from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.extensions.queue.sensor import EVERY_SECONDS
from lakehouse_assets.extensions.queue.source import sqs_client
from lakehouse_assets.run.asset import table_asset
from tests.support.faults import FaultyLakehouse
from tests.support.queue_location import SETTINGS, TABLES

TABLE = TABLES[0]


@dg.sensor(
    asset_selection=dg.AssetSelection.assets(TABLE.key),
    minimum_interval_seconds=EVERY_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def stock(context: dg.SensorEvaluationContext) -> Iterator[dg.RunRequest]:
    """Up to ten messages a tick, deleted on receipt, a run for each."""
    assert SETTINGS.queue
    sqs, url = sqs_client(), SETTINGS.queue.url
    for message in sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", ()):
        handle = message["ReceiptHandle"]
        sqs.delete_message_batch(QueueUrl=url, Entries=[{"Id": "0", "ReceiptHandle": handle}])
        (key,) = json.loads(message["Body"])["partitions"]
        yield dg.RunRequest(message["MessageId"], asset_selection=[TABLE.key], partition_key=key)


defs = dg.Definitions(
    [table_asset(TABLE, EXTENSIONS)],
    sensors=[stock],
    resources={"lakehouse": FaultyLakehouse(SETTINGS)},
    executor=dg.in_process_executor,
)
