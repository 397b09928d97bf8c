"""Sets how often PyIceberg's FileIO retries calls to S3, so that they outlast 503 SlowDown or a network outage.

PyIceberg imports this when it first opens a file on S3 (its property ``s3.retry-strategy-impl``); nothing else does.
"""

from __future__ import annotations

from pyarrow.fs import AwsDefaultS3RetryStrategy

# The first wait is 50 ms, each further one twice as long: 51 s in all (measured), 87 s where connections hang, as the
# SDK gives these up after 3 s. PyArrow's default of 3 tries ends after 2 s. The SDK's «standard» strategy is no
# better: all threads share one budget of tries, so that sixteen readers would get a part of them each.
RETRIES = 11


class LongS3Retries(AwsDefaultS3RetryStrategy):  # type: ignore[misc]  # PyArrow has no types
    """The retry strategy for ``s3.retry-strategy-impl``, which names a class to be called without arguments."""

    def __init__(self) -> None:
        super().__init__(max_attempts=RETRIES)
