"""Looks whether a version has arrived in the regions to which S3 replicates it, whole and readable.

S3 copies by the bucket's own rules (https://docs.aws.amazon.com/AmazonS3/latest/userguide/replication.html); nothing is
copied here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from lakehouse_assets.errors import HandOffRefused, HandOffUnfinished
from lakehouse_assets.hand_off.glue_registry import may_have_landed
from lakehouse_assets.hand_off.hive_files import list_sizes, read_files
from lakehouse_assets.hand_off.records import HandedFile, Written
from lakehouse_assets.hand_off.waits import Clock, backoff
from lakehouse_assets.storage.place import Place, place_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class VerifiedReplica:
    """A replica that was found to have all files of a version."""

    location: str
    """The version's folder there."""
    waited: timedelta
    """From the first look until all was there."""
    looks: int


def verify_replicas(
    client: Any, replicas: Sequence[str], written: Written, within: timedelta, clock: Clock
) -> list[VerifiedReplica]:
    """Waits until each replica has each file: as many bytes, the same footer, and so the same rows. Region by region.

    client: of S3; botocore finds a bucket's region by itself. replicas: prefixes. within: how long all of them may take
    together.

    Raises HandOffUnfinished for a replica that is not whole in time, HandOffRefused for one that can't be read.
    """
    until = clock.now() + within
    return [_verify(client, one, written, until, clock) for one in replicas]


def _verify(client: Any, replica: str, written: Written, until: datetime, clock: Clock) -> VerifiedReplica:
    folder = place_of(replica).child(written.name)
    began = clock.now()
    verified: set[str] = set()
    for looks, wait in enumerate(backoff(), start=1):
        lacks = _look(client, folder, written.files, verified)
        if not lacks:
            return VerifiedReplica(folder.location, clock.now() - began, looks)
        left = (until - clock.now()).total_seconds()
        if left <= 0:
            raise HandOffUnfinished(
                f"replica {folder.location}: {lacks}, after {looks} looks in {clock.now() - began}. Nothing was "
                "switched, readers go on with the version before. See the bucket's replication metrics, then "
                "re-execute the run from failure: what was written is kept"
            )
        logger.info("replica %s: %s; next look in %.0f s", folder.location, lacks, min(wait, left))
        clock.sleep(min(wait, left))
    raise AssertionError("the waits have no end")


def _look(client: Any, folder: Place, files: Mapping[str, HandedFile], verified: set[str]) -> str:
    """Says what a replica lacks of the files; "" for nothing. Adds those that are whole to ``verified``."""
    try:
        sizes = list_sizes(client, folder)
        there = {path: size for path, size in sizes.items() if path in files and path not in verified}
        whole = {path: size for path, size in there.items() if size == files[path].size}
        found = read_files(client, folder, whole)
    except ValueError as error:
        return f"a file is no Parquet: {error}"
    except Exception as error:
        if may_have_landed(error):
            return f"it could not be read ({error!r})"
        raise HandOffRefused(
            f"replica {folder.location} can't be read: {error}. Nothing was switched, readers go on with the version "
            "before. Allow s3:ListBucket and s3:GetObject there, then re-execute the run from failure"
        ) from error
    verified |= {path for path, file in found.items() if file == files[path]}
    pending = sorted(files.keys() - verified)
    if more := sorted(sizes.keys() - files.keys()):
        return f"it has files that are not of this version, such as {more[0]}"
    return f"{len(pending)} of {len(files)} files have not arrived, such as {pending[0]}" if pending else ""
