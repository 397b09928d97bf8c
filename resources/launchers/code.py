"""Puts this project's code to S3, once for each content hash, for workers that spark-submit starts from there.

What the hash covers is decided in package.py.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from resources.aws import bucket_and_key
from resources.package import content_hash, sources

# A zip with the content of the wheel, without the metadata that only pip reads: PySpark passes .zip, .egg and .jar to
# the executors' Python, but no .whl (PACKAGE_EXTENSIONS in pyspark/core/context.py).
PACKAGE = "code.zip"
ENTRY_POINT = "worker.py"
# The earliest time a zip can hold: the same content gives the same bytes.
EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Shipped:
    """The URLs of the code in S3."""

    package: str
    """The URL for --py-files."""
    entry_point: str
    """The URL of the script to submit."""


def ship(s3: Any, prefix: str, worker: str) -> Shipped:
    """Puts the code under ``<prefix>/<content hash>/``, unless it is there already.

    s3: a boto3 client. prefix: ``s3://bucket[/folder]``. worker: the module to run, whose ``__main__`` has a ``main``.
    Several processes at once write the same bytes. Raises ClientError and BotoCoreError as boto3 does.
    """
    bucket, folder = bucket_and_key(prefix)
    place = f"{folder}/{content_hash()}".lstrip("/")
    package, script = f"{place}/{PACKAGE}", f"{place}/{ENTRY_POINT}"
    there = {listed["Key"] for listed in s3.list_objects_v2(Bucket=bucket, Prefix=f"{place}/").get("Contents", ())}
    if package not in there:
        s3.put_object(Bucket=bucket, Key=package, Body=zipped(sources()))
    if script not in there:
        s3.put_object(Bucket=bucket, Key=script, Body=entry_point(worker))
    return Shipped(f"s3://{bucket}/{package}", f"s3://{bucket}/{script}")


def entry_point(worker: str) -> bytes:
    """Returns a script that runs the worker's module."""
    return f"import sys\n\nfrom {worker}.__main__ import main\n\nsys.exit(main())\n".encode()


def zipped(files: Iterable[tuple[str, bytes]]) -> bytes:
    """Packs the files, (path, content), into a zip that Python can import from."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files:
            archive.writestr(zipfile.ZipInfo(name, EPOCH), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
