"""A drop zone in a bucket: the source asset fills it, a worker reads it by its s3:// prefix, as it reads a folder.
The folder's faults are in test_nyc_dropzone.py."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from lakehouse_assets.domains.nyc.landing import landing
from lakehouse_assets.domains.nyc.tables import flights
from lakehouse_assets.environment.catalog import load_lake, worker_properties
from lakehouse_assets.environment.settings import Settings, read_settings
from lakehouse_assets.files.cell_types import Spelling
from lakehouse_assets.files.csv_rows import CsvReader
from lakehouse_assets.files.csv_text import CsvForm
from lakehouse_assets.files.delivered import DropZoneError, ReadFiles, find_files, sent_catalog, unpacked
from lakehouse_assets.run.resource import Lakehouse
from tests.conftest import Lake, failure_text
from tests.support.servers import PLAIN_BUCKET, SeaweedFS

pytestmark = [pytest.mark.spark, pytest.mark.server]


@pytest.fixture
def lake(
    settings: Settings, instance: dg.DagsterInstance, weed: SeaweedFS, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Lake:
    """The embedded home with a catalog, a warehouse and a drop zone elsewhere."""
    for name, value in weed.environment().items():
        monkeypatch.setenv(name, value)
    for name in ("LANDING", "STAGING"):
        monkeypatch.setenv(f"LAKEHOUSE_{name}", f"{weed.plain}/{tmp_path.name}/{name.lower()}")
    if (catalog := load_lake(read_settings())).table_exists(flights.identifier):
        catalog.drop_table(flights.identifier)  # another file's, on the same server
    return Lake(read_settings(), instance)


def test_a_bucket_is_read_whatever_the_names(lake: Lake, weed: SeaweedFS, tmp_path: Path) -> None:
    folder = f"{weed.plain}/{tmp_path.name}"
    names = ["2026-01-01-05:00", "_x", "a b+ü%41"]
    for name in names:
        key = f"{tmp_path.name}/{name}.csv.gz"
        Lakehouse(lake.settings).s3().put_object(Bucket=PLAIN_BUCKET, Key=key, Body=gzip.compress(b"id\n1\n"))
    found = find_files(f"{folder}/", names, "{key}.csv")
    assert [file.location for file in found] == [f"{folder}/{name}.csv.gz" for name in names]
    for file in found:
        with unpacked(file.location) as content:
            assert content.read() == b"id\n1\n"
    with pytest.raises(DropZoneError, match=r"x, y is missing"):
        find_files(folder, ["x", "_x", "y"], "{key}.csv")


def test_a_worker_reads_it_by_the_catalog_that_it_was_sent(
    lake: Lake, weed: SeaweedFS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Lakehouse(lake.settings).s3().put_object(Bucket=PLAIN_BUCKET, Key=f"{tmp_path.name}/a.csv", Body=b"id\n1\n")
    sent = worker_properties(lake.settings)
    for name in weed.environment():
        if name.startswith("PYICEBERG_") and "ACCESS_KEY" not in name:  # secrets are not sent
            monkeypatch.delenv(name)
    with sent_catalog(sent):
        files = find_files(f"{weed.plain}/{tmp_path.name}", ["a"], "{key}.csv")
        read = ReadFiles(CsvReader({"id": "int"}, CsvForm(), Spelling(), [""], {}, [], trim=False), files)
        assert read.head_problems() == {}
    numbers = pa.RecordBatch.from_pydict({"id": [0]})
    in_a_task = pickle.loads(pickle.dumps(read))  # of Spark, whose Python has only its own environment
    assert [row for batch in in_a_task([numbers]) for row in batch.to_pylist()] == [{"id": 1}]


@pytest.mark.long(
    "Runs real workers over a drop zone in S3; test_nyc_dropzone.py holds what is read, test_emr.py reads S3."
)
def test_a_bucket_is_filled_once_and_read_by_its_prefix(lake: Lake, weed: SeaweedFS) -> None:
    first, again = (landing(Lakehouse(lake.settings)).metadata for _ in range(2))
    assert (first["files"], first["files_written"], again["files_written"]) == (733, 733, 0)

    assert lake.run(flights, "2013-03-09", "2013-03-10").success
    assert lake.rows(flights).num_rows == 765 + 908

    lakehouse = Lakehouse(lake.settings)
    key = f"{lakehouse.landing('nyc').removeprefix(f's3://{PLAIN_BUCKET}/')}/flights/2013-03-11.csv.gz"
    lakehouse.s3().delete_object(Bucket=PLAIN_BUCKET, Key=key)
    failed = lake.run(flights, "2013-03-10", "2013-03-12")
    assert not failed.success
    assert "2013-03-11 is missing" in failure_text(failed)
    assert lake.snapshots(flights) == 1
