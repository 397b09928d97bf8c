"""PyIceberg's FileIO: closes its connections, and retries longer."""

from __future__ import annotations

from functools import lru_cache
from inspect import unwrap

from pyarrow.fs import AwsDefaultS3RetryStrategy
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties

# The first wait is 50 ms, each further one twice as long: 51 s in all (measured), 87 s if connections hang, as the SDK
# gives up on them after 3 s. PyArrow's default of 3 tries ends after 2 s. In the SDK's «standard» strategy all threads
# share one budget of tries: too few for sixteen readers.
RETRIES = 11


class ClosingFileIO(PyArrowFileIO):
    """A PyArrowFileIO that closes its connections when nothing refers to it.

    PyIceberg's own keeps its file systems in a cache around one of its methods, a reference cycle: three or more open
    files of each FileIO stay open until Python's next full collection.
    """

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__(properties)
        # The uncached method of another instance, so that this cache does not refer to the instance that owns it.
        self.fs_by_scheme = lru_cache(unwrap(PyArrowFileIO(properties).fs_by_scheme))


class LongS3Retries(AwsDefaultS3RetryStrategy):  # type: ignore[misc]  # PyArrow has no types
    """The strategy for ``s3.retry-strategy-impl``, which PyIceberg makes without arguments."""

    def __init__(self) -> None:
        super().__init__(max_attempts=RETRIES)
