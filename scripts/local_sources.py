"""Serves the UI with sources of its own: Kafka and PostgreSQL on loopback, which end with it. Behind
``make ui EVENTS=1``. What is in them stays in LAKEHOUSE_HOME; what is sent there is replay.py's."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg2
from confluent_kafka.admin import AdminClient, NewTopic

from lakehouse_assets.cli.__main__ import main
from lakehouse_assets.domains.live.tables import flight_events, flight_state
from lakehouse_assets.environment.settings import Settings, read_settings
from tests.support.hot_tables import ddl_of
from tests.support.kafka import kafka
from tests.support.postgres import binaries, postgresql

ADDRESS = "sources.json"
"""The file in LAKEHOUSE_HOME that says where the sources are."""


@contextmanager
def local_sources(settings: Settings) -> Iterator[dict[str, str]]:
    """Starts both, empty at first, and says where: yields the variables by which they are reached, which it sets."""
    address = settings.home / ADDRESS
    with kafka(settings, settings.home / "kafka") as broker, postgresql(settings.home / "postgresql") as server:
        environment = {"KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap, **server.variables}
        os.environ |= environment
        admin, topic = AdminClient({"bootstrap.servers": broker.bootstrap}), flight_events.source.topic
        if topic not in admin.list_topics(timeout=20).topics:
            admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(20)
        with psycopg2.connect("") as connection, connection.cursor() as cursor:
            cursor.execute(ddl_of(flight_state))
        address.write_text(json.dumps(environment))
        try:
            yield environment
        finally:
            address.unlink(missing_ok=True)


def serve(arguments: list[str]) -> int:
    """Run the command line's ``ui`` with these arguments. Returns its exit status."""
    if binaries() is None:
        print("error: PostgreSQL is not installed (on Debian: `apt-get install postgresql`)", file=sys.stderr)
        return 1
    print("starting Kafka and PostgreSQL …", flush=True)
    with local_sources(read_settings()):
        print("`make replay` in another terminal sends what happened in 2013", flush=True)
        return main(["ui", *arguments])


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1:]))
