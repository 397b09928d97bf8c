"""Sends events to the topic of bench/hot.py at a steady rate, in a process of its own, beside whoever reads them.
What is measured of them is hot.py's."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime

from confluent_kafka import Producer

from tests.support.topics import TOPIC


def main() -> None:
    """Takes the broker, the events a second, and for how many seconds."""
    bootstrap, rate, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    began, sent = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        while sent < (time.monotonic() - began) * rate:
            at = datetime.now(UTC).isoformat()
            producer.produce(TOPIC, f'{{"n": {sent}, "text": "event {sent}", "sent_at": "{at}"}}')
            sent += 1
            if not sent % 1000:
                producer.poll(0)
        producer.poll(0.002)
    assert producer.flush(30) == 0


if __name__ == "__main__":
    main()
