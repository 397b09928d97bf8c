"""Chooses the trash that a table's storage allows: by renaming, by copies, by versions, or none at all.

What each of them does is in its own file.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from lakehouse_assets.collect.bins import Bin, BinOf
from lakehouse_assets.collect.ledger import Batch
from lakehouse_assets.collect.s3_objects import S3Calls, calls
from lakehouse_assets.collect.trash_local import LocalBin
from lakehouse_assets.collect.trash_s3 import PlainBin
from lakehouse_assets.collect.trash_versions import VersionedBin
from lakehouse_assets.errors import StorageRefused
from lakehouse_assets.storage.place import Place, StorageKind
from lakehouse_assets.storage.raw_s3 import raw_client

TABLE_BUCKET = "--table-s3"
"""The end of the names of buckets in which S3 Tables keeps tables
(https://docs.aws.amazon.com/AmazonS3/latest/userguide/s3-tables-tables.html)."""


def bins(properties: Mapping[str, str], folder: Place, table: str, place: Place) -> tuple[Bin, BinOf]:
    """Returns the bin by which files are taken at the place now, and a function that finds the bin of an earlier batch.

    properties: PyIceberg's, of the FileIO. folder: of the trash. table: its identifier. Raises StorageRefused where
    there is no way to take a file and give it back, and what the storage raises.
    """
    if folder.is_within(place):
        raise StorageRefused(
            f"table {table}: the trash {folder.location!r} would lie in the table's own location {place.location!r}, "
            "where it would count as files that nobody needs: let LAKEHOUSE_STAGING be a prefix outside of all tables"
        )
    if place.bucket.endswith(TABLE_BUCKET):
        raise StorageRefused(
            f"table {table}: {place.location!r} is a table bucket of S3 Tables, which lets nobody list, copy or delete "
            "single files; it removes by itself what no snapshot needs (unreferencedDays of its maintenance settings)"
        )
    s3 = cache(lambda: _calls(properties, folder))
    now = _local(folder, table, place) if place.kind is StorageKind.FILE else _s3(s3(), folder, table, place)

    def of(batch: Batch) -> Bin:
        # One ledger may tell of files of two storages: receipts lie where LAKEHOUSE_STAGING is.
        if batch.kind is StorageKind.FILE:
            return LocalBin(folder.key)
        return VersionedBin(s3()) if batch.has_versions else PlainBin(s3(), folder)

    return now, of


def _local(folder: Place, table: str, place: Place) -> Bin:
    if folder.kind is not StorageKind.FILE:
        raise StorageRefused(_apart(table, place, folder))
    return LocalBin.beside(folder.key, place)


def _s3(s3: S3Calls, folder: Place, table: str, place: Place) -> Bin:
    if s3.client.get_bucket_versioning(Bucket=place.bucket).get("Status") == "Enabled":
        return VersionedBin(s3)
    if folder.kind is StorageKind.FILE:
        raise StorageRefused(_apart(table, place, folder))
    return PlainBin(s3, folder)


def _calls(properties: Mapping[str, str], folder: Place) -> S3Calls:
    client = raw_client(properties)
    return S3Calls(client, is_conditional=False) if folder.kind is StorageKind.FILE else calls(client, folder)


def _apart(table: str, place: Place, folder: Place) -> str:
    return (
        f"table {table}: its files lie at {place.location!r}, the trash would be {folder.location!r}, and the storage "
        "of the one can't move files to the other: let LAKEHOUSE_STAGING be a prefix of the table's kind of storage"
    )
