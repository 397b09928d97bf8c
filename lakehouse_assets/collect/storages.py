"""Which trash a table's storage allows: by renaming, by copies, by versions, or none at all.
What each of them does is in its own file."""

from __future__ import annotations

from collections.abc import Mapping

from lakehouse_assets.collect.bins import Bin, BinOf
from lakehouse_assets.collect.place import Kind, Place
from lakehouse_assets.collect.raw_s3 import raw_client
from lakehouse_assets.collect.s3_objects import S3Calls, calls
from lakehouse_assets.collect.trash_local import LocalBin
from lakehouse_assets.collect.trash_s3 import PlainBin
from lakehouse_assets.collect.trash_versions import VersionedBin
from lakehouse_assets.errors import StorageRefused

TABLE_BUCKET = "--table-s3"
"""How the buckets' names end that S3 Tables keeps tables in
(https://docs.aws.amazon.com/AmazonS3/latest/userguide/s3-tables-tables.html)."""


def bins(properties: Mapping[str, str], folder: Place, table: str, place: Place) -> tuple[Bin, BinOf]:
    """How files are taken at the place now, and how those of a batch were.

    properties: PyIceberg's, of the FileIO. folder: of the trash. table: its identifier. Raises StorageRefused where
    there is no way to take a file and give it back, and what the storage raises.
    """
    if folder.is_within(place):
        raise StorageRefused(
            f"table {table}: the trash {folder.location!r} would lie in the table's own location {place.location!r}, "
            "where it would count as files that nobody needs: let LAKEHOUSE_STAGING be a prefix outside of all tables"
        )
    if place.kind is Kind.FILE:
        return _local(folder, table, place)
    if place.bucket.endswith(TABLE_BUCKET):
        raise StorageRefused(
            f"table {table}: {place.location!r} is a table bucket of S3 Tables, which lets nobody list, copy or delete "
            "single files; it removes by itself what no snapshot needs (unreferencedDays of its maintenance settings)"
        )
    return _s3(properties, folder, table, place)


def _local(folder: Place, table: str, place: Place) -> tuple[Bin, BinOf]:
    if folder.kind is not Kind.FILE:
        raise StorageRefused(_apart(table, place, folder))
    local = LocalBin.beside(folder.key, place)
    return local, lambda batch: local


def _s3(properties: Mapping[str, str], folder: Place, table: str, place: Place) -> tuple[Bin, BinOf]:
    client = raw_client(properties)
    has_versions = client.get_bucket_versioning(Bucket=place.bucket).get("Status") == "Enabled"
    if folder.kind is Kind.FILE and not has_versions:
        raise StorageRefused(_apart(table, place, folder))
    s3 = S3Calls(client, is_conditional=False) if folder.kind is Kind.FILE else calls(client, folder)
    versioned, plain = VersionedBin(s3), PlainBin(s3, folder)
    return versioned if has_versions else plain, lambda batch: versioned if batch.has_versions else plain


def _apart(table: str, place: Place, folder: Place) -> str:
    return (
        f"table {table}: its files lie at {place.location!r}, the trash would be {folder.location!r}, and the storage "
        "of the one can't move files to the other: let LAKEHOUSE_STAGING be a prefix of the table's kind of storage"
    )
