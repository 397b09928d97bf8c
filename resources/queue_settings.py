"""Reads the settings of the queue that asks for partitions: its URL, its dead letters', its number of runs.

Which messages it has, and what is done for them, is not known here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from resources.env_reader import EnvReader
from resources.secrets import shown

URL = r"https?://[^/\s]+/(\S+/)?[A-Za-z0-9_-]{1,80}"
"""The URL of a standard queue: the names of other queues end with .fifo
(https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-queue-message-identifiers.html)."""
EXAMPLE = "https://sqs.eu-central-1.amazonaws.com/123456789012/lakehouse"
RUNS = 4


@dataclass(frozen=True)
class QueueSettings:
    """The settings of the queue that asks for partitions."""

    url: str
    """LAKEHOUSE_QUEUE."""
    dead_letters: str
    """LAKEHOUSE_QUEUE_DEAD_LETTERS, the URL of the queue for messages that nobody can act on."""
    runs: int = RUNS
    """LAKEHOUSE_QUEUE_RUNS, how many runs of its own the queue may have at once, over all tables."""

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.url.rpartition("/")[2]

    @property
    def is_on_loopback(self) -> bool:
        """Whether only this machine reaches the queue, as that of ``make ui QUEUE=1``."""
        return urlsplit(self.url).hostname in ("127.0.0.1", "localhost", "::1")


def read_queue(env: Mapping[str, str]) -> tuple[QueueSettings | None, list[str]]:
    """Reads the settings, None where LAKEHOUSE_QUEUE is not set; and a sentence for each that can't work."""
    if not env.get("LAKEHOUSE_QUEUE", "").strip():
        set_alone = [n for n in ("LAKEHOUSE_QUEUE_DEAD_LETTERS", "LAKEHOUSE_QUEUE_RUNS") if env.get(n, "").strip()]
        return None, [f"{name} is set, but LAKEHOUSE_QUEUE is not: no queue is read" for name in set_alone]
    reader = EnvReader(env)
    reader.needed_by = "LAKEHOUSE_QUEUE"
    url = reader.text("LAKEHOUSE_QUEUE", URL, EXAMPLE)
    dead_letters = reader.text("LAKEHOUSE_QUEUE_DEAD_LETTERS", URL, f"{EXAMPLE}-dead-letters")
    runs = reader.number("LAKEHOUSE_QUEUE_RUNS", int)
    staging = env.get("LAKEHOUSE_STAGING", "").strip()
    if "://" in staging and not re.match("(s3[an]?|file)://", staging):
        reader.problems.append(
            f"LAKEHOUSE_STAGING={shown(staging)} is neither a folder nor on S3: the inbox of LAKEHOUSE_QUEUE needs one"
        )
    if url == dead_letters:
        reader.problems.append("LAKEHOUSE_QUEUE_DEAD_LETTERS is the queue itself; it must be another one")
    return QueueSettings(url, dead_letters, runs or RUNS), reader.problems
