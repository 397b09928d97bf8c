"""PyIceberg's FileIO as the catalog is opened with it, on a real S3. What retries do is in test_slow_down.py."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.io import load_file_io

from lakehouse_assets.environment.catalog import catalog_properties
from lakehouse_assets.environment.settings import Settings
from tests.support.servers import SeaweedFS

pytestmark = pytest.mark.server


@pytest.fixture
def without_full_collections() -> Iterator[None]:
    """Objects go only where nothing refers to them, as between two full collections of a busy process."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.usefixtures("without_full_collections")
def test_a_file_io_that_is_let_go_of_keeps_no_connection(
    weed: SeaweedFS, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in weed.environment().items():
        monkeypatch.setenv(name, value)

    def touch_s3() -> None:
        location = f"{weed.plain}/{tmp_path.name}/object"
        with load_file_io(catalog_properties(settings), location).new_output(location).create(overwrite=True) as file:
            file.write(b"here")

    touch_s3()  # what stays open for all of them
    before = open_files()
    for _ in range(20):
        touch_s3()
    assert open_files() <= before + 3
