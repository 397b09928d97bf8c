"""The end of a log that a service keeps in S3.
Where a service puts it, and when, is the launchers' business."""

from __future__ import annotations

import gzip
from collections import deque
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

LINES = 50


def tail(s3: Any, location: str, when: str) -> str:
    """The last LINES lines of a gzipped log, or why they can't be read.

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
