"""Serves the UI with a queue of its own: SQS on loopback, which ends with it. Behind ``make ui QUEUE=1``.
What is sent there is events.py's; what SQS does is in tests/support/fakes/sqs_service.py."""

from __future__ import annotations

import os
import sys

from lakehouse_assets.cli.__main__ import main
from lakehouse_assets.environment.settings import read_home
from tests.support.fakes.sqs_service import FakeSqs
from tests.support.queue_lake import DEAD, QUEUE, sqs_on_loopback

ADDRESS = "queue.url"
"""The file in LAKEHOUSE_HOME that says where the queue is."""


def serve(arguments: list[str]) -> int:
    """Run the command line's ``ui`` with these arguments. Returns its exit status."""
    with sqs_on_loopback(FakeSqs(QUEUE, DEAD)) as (_, environment):
        for name, value in environment.items():
            if name.startswith("AWS_") and "ENDPOINT" not in name:
                os.environ.setdefault(name, value)  # S3 may need what is set
            else:
                os.environ[name] = value
        address = read_home() / ADDRESS
        address.parent.mkdir(parents=True, exist_ok=True)
        address.write_text(environment["LAKEHOUSE_QUEUE"])
        print(
            f"the queue: {environment['LAKEHOUSE_QUEUE']}; `make events` in another terminal sends arrivals", flush=True
        )
        try:
            return main(["ui", *arguments])
        finally:
            address.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1:]))
