"""A store that lets nobody list, as S3 Tables: what asks whether a file is there asks for the file.
Whole runs on such a store are test_table_bucket.py's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile

from lakehouse_assets.commit.fork import written_base
from lakehouse_assets.commit.staged import missing_files
from lakehouse_assets.environment.file_io import ClosingFileIO
from tests.support.proxy import proxy
from tests.support.servers import SeaweedFS

pytestmark = pytest.mark.server


@pytest.fixture
def io(weed: SeaweedFS) -> Iterator[FileIO]:
    with proxy(weed.s3_endpoint, refuses=lambda method, path: "list-type" in path) as front:
        yield ClosingFileIO({**weed.s3_properties(), "s3.endpoint": front.uri})


def test_a_fork_that_is_not_there_is_none(weed: SeaweedFS, io: FileIO) -> None:
    assert written_base(io, f"{weed.plain}/nothing/00000-fork.metadata.json") is None


def test_files_that_are_gone_are_named(weed: SeaweedFS, io: FileIO) -> None:
    there, gone = (DataFile.from_args(file_path=f"{weed.plain}/some/{name}.parquet") for name in ("there", "gone"))
    with io.new_output(there.file_path).create(overwrite=True) as stream:
        stream.write(b"rows")
    assert missing_files(io, [there, gone]) == [gone.file_path]
