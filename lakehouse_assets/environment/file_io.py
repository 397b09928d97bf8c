"""How PyIceberg's own process reads and writes files: the FileIO that closes its connections, and retries that last."""

from __future__ import annotations

from functools import lru_cache
from inspect import unwrap

from pyarrow.fs import AwsDefaultS3RetryStrategy
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties

# The first wait is 50 ms, each further one twice as long: 51 s in all (measured), 87 s where connections hang, as the
# SDK gives these up after 3 s. PyArrow's default of 3 tries ends after 2 s. The SDK's «standard» strategy is no
# better: all threads share one budget of tries, so that sixteen readers would get a part of them each.
RETRIES = 11


class ClosingFileIO(PyArrowFileIO):
    """PyIceberg's FileIO on Arrow, whose connections close when nothing refers to it any more.

    PyIceberg's keeps its file systems in a cache around one of its own methods, a circle of references: their three or
    more open files each stay until Python's next full collection.
    """

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__(properties)
        # Another one's method without its cache, so that this cache, which holds what is open, has no way to its owner.
        self.fs_by_scheme = lru_cache(unwrap(PyArrowFileIO(properties).fs_by_scheme))


class LongS3Retries(AwsDefaultS3RetryStrategy):  # type: ignore[misc]  # PyArrow has no types
    """The retry strategy for ``s3.retry-strategy-impl``, which names a class to be called without arguments."""

    def __init__(self) -> None:
        super().__init__(max_attempts=RETRIES)
