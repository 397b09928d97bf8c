"""The end of a log that a service keeps in S3.
Where that is, and when it comes there, is the service's."""

from __future__ import annotations

import gzip
from collections import deque
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

LINES = 50


def tail(s3: Any, location: str, coming: str) -> str:
    """The last LINES lines of a gzipped log, or why there are none: never raises, it is for a worker that failed.

    s3: a boto3 client. location: ``s3://…`` or ``s3n://…``. coming: when the service puts it there.
    """
    bucket, _, key = location.partition("://")[2].partition("/")
    try:
        with gzip.open(s3.get_object(Bucket=bucket, Key=key)["Body"]) as lines:
            return b"".join(deque(lines, LINES)).decode(errors="replace").strip()
    except s3.exceptions.NoSuchKey:
        return f"{location} is not there yet: {coming}"
    except (ClientError, BotoCoreError, OSError, EOFError) as error:
        return f"{location} can't be read: {error}"
