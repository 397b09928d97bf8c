"""The end of a log that a service keeps in CloudWatch Logs.
How a service names its group and stream is the launchers' business."""

from __future__ import annotations

from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

LINES = 50


def tail(logs: Any, group: str, stream: str) -> str:
    """The last LINES lines of a stream, or why they can't be read. logs: a boto3 client."""
    try:
        events = logs.get_log_events(logGroupName=group, logStreamName=stream, limit=LINES, startFromHead=False)
    except (ClientError, BotoCoreError) as error:  # the verdict doesn't need the log
        return f"its log in CloudWatch can't be read, group {group}, stream {stream}: {error}"
    return "\n".join(event["message"] for event in events["events"])
