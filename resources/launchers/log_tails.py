"""Reads the end of a log that a service keeps in S3 or in CloudWatch Logs, for a worker that failed.

Where a service puts its logs, and when, is its launcher's business.
"""

from __future__ import annotations

import gzip
from collections import deque
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

LINES = 50


def s3_tail(s3: Any, location: str, when: str) -> str:
    """Returns the last LINES lines of a gzipped log, or why they can't be read.

    s3: a boto3 client. location: ``s3://…`` or ``s3n://…``. when: when the service puts the log there, for a message.
    """
    bucket, _, key = location.partition("://")[2].partition("/")
    try:
        with gzip.open(s3.get_object(Bucket=bucket, Key=key)["Body"]) as lines:
            return b"".join(deque(lines, LINES)).decode(errors="replace").strip()
    except s3.exceptions.NoSuchKey:
        return f"{location} is not there yet: {when}"
    except (ClientError, BotoCoreError, OSError, EOFError) as error:
        return f"{location} can't be read: {error}"


def cloudwatch_tail(logs: Any, group: str, stream: str) -> str:
    """Returns the last LINES lines of a stream, or why they can't be read. logs: a boto3 client."""
    try:
        events = logs.get_log_events(logGroupName=group, logStreamName=stream, limit=LINES, startFromHead=False)
    except (ClientError, BotoCoreError) as error:
        return f"its log in CloudWatch can't be read, group {group}, stream {stream}: {error}"
    return "\n".join(event["message"] for event in events["events"])
