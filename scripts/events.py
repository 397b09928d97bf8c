"""Sends the arrivals of the flights' files to the queue of ``make ui QUEUE=1``, as S3 would. Behind ``make events``.
Out of order, some twice, and some that nobody can read; the files themselves are put into the drop zone first."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote_plus, urlsplit

from lakehouse_assets.domains.nyc.landing import YEAR, deliver, into_folder
from lakehouse_assets.environment.settings import read_settings
from scripts.local_queue import ADDRESS
from tests.support.fakes.sqs_service import REGION

POISON = ("{", '{"table": "nyc.nothing"}', '{"Records": []}')


def bodies(days: Sequence[str], duplicates: float, poison: float, seed: int) -> list[str]:
    """The messages in the order in which they are sent. duplicates, poison: shares of them."""
    random_ = random.Random(seed)
    found = [_notification(f"nyc/flights/{day}.csv.gz") for day in days]
    found += random_.sample(found, round(len(found) * duplicates))
    found += random_.choices(POISON, k=max(1, round(len(found) * poison)))
    random_.shuffle(found)
    return found


def _notification(key: str) -> str:
    s3 = {"bucket": {"name": "drop-zone"}, "object": {"key": quote_plus(key)}}
    return json.dumps({"Records": [{"eventName": "ObjectCreated:Put", "s3": s3}]})


def main() -> int:
    parser = argparse.ArgumentParser(prog="make events", description=__doc__)
    parser.add_argument("--speed", type=float, default=20.0, help="messages a second")
    parser.add_argument("--days", type=int, default=len(YEAR), help="of 2013, from its first")
    chosen = parser.parse_args()
    if not (chosen.speed > 0 and 1 <= chosen.days <= len(YEAR)):
        parser.error(f"the speed must be above 0, and the days 1 to {len(YEAR)}")
    settings = read_settings()
    address = settings.home / ADDRESS
    if not address.exists():
        print(f"error: there is no {address}: start `make ui QUEUE=1` first", file=sys.stderr)
        return 1
    if "://" in settings.landing:
        print(f"error: LAKEHOUSE_LANDING is {settings.landing}; the demo needs a folder", file=sys.stderr)
        return 1
    import boto3  # slow

    print("filling the drop zone …", flush=True)
    deliver(into_folder(Path(settings.landing) / "nyc"))
    url = address.read_text()
    parts = urlsplit(url)
    sqs = boto3.client(
        "sqs",
        endpoint_url=f"{parts.scheme}://{parts.netloc}",
        region_name=REGION,
        aws_access_key_id="nobody",
        aws_secret_access_key="nothing",
    )
    messages = bodies(YEAR[: chosen.days], duplicates=0.05, poison=0.01, seed=round(time.time()))
    for number, body in enumerate(messages, 1):
        sqs.send_message(QueueUrl=url, MessageBody=body)
        if number % 50 == 0 or number == len(messages):
            print(f"{number} of {len(messages)} sent", flush=True)
        time.sleep(1 / chosen.speed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
