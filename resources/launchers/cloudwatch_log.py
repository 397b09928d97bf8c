"""The end of a log that a service keeps in CloudWatch Logs.
How its group and stream are named is the service's."""

from __future__ import annotations

from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

LINES = 50


def tail(logs: Any, group: str, stream: str) -> str:
    """The last LINES lines of a stream, by one call, or why there are none: never raises, it is for a worker that
    failed. logs: a boto3 client."""
    try:
        events = logs.get_log_events(logGroupName=group, logStreamName=stream, limit=LINES, startFromHead=False)
    except (ClientError, BotoCoreError) as error:  # a log more or less changes no verdict
        return f"its log in CloudWatch can't be read, group {group}, stream {stream}: {error}"
    return "\n".join(event["message"] for event in events["events"])
