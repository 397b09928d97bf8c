"""How long PyIceberg tries a file on S3 again: longer than a spell of 503 SlowDown, or of a network that is gone.
PyIceberg imports this when it first opens such a file (its property ``s3.retry-strategy-impl``); nothing else does."""

from __future__ import annotations

from pyarrow.fs import AwsDefaultS3RetryStrategy

# Waits from 50 ms on, each twice the one before: 51 s in all, measured; PyArrow's own three tries are over in 2 s. A
# connection that hangs is given up by the SDK after 3 s a try: 87 s in all. Not the SDK's «standard» strategy: its
# tries come out of a budget that all threads share, so sixteen readers would each get a part of them.
RETRIES = 11


class Patient(AwsDefaultS3RetryStrategy):
    """For ``s3.retry-strategy-impl``, which takes a class without arguments."""

    def __init__(self) -> None:
        super().__init__(max_attempts=RETRIES)
