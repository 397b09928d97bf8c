"""Some files written, then put into the trash and brought back a few times, in a process of its own.
Prints one line of JSON: seconds of each turn, and the memory that it took."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from lakehouse_assets.maintenance.collect.ledger import Entry, Owner
from lakehouse_assets.maintenance.collect.listing import Listed, list_files
from lakehouse_assets.maintenance.collect.trash import Trash, TrashSelection
from lakehouse_assets.storage.objects import at_once, raw_client
from lakehouse_assets.storage.place import Place, StorageKind, place_of

T = TypeVar("T")
MIB = 2**20
OWNER = Owner("demo.numbers", "6f9619ff-8b86-d011-b42d-00c04fc964ff")


def main(properties: Mapping[str, str], staging: str, root: Place, files: int, turns: int) -> None:
    _write(properties, root, files)
    measured: dict[str, list[float]] = {"list": [], "put": [], "restore": []}
    trash = Trash.for_location(properties, staging, OWNER, root)
    before, found = _peak(), 0
    for turn in range(turns):
        listed = _timed(measured["list"], partial(_list, properties, root))
        dues = [Entry.of(file, "no snapshot has it", 0) for file in listed]
        put = _timed(measured["put"], partial(trash.put, dues, f"run-{turn}"))
        back = _timed(measured["restore"], partial(trash.restore, TrashSelection(f"run-{turn}")))
        found = min(put.files, back.restored, len(_list(properties, root)))
    print(json.dumps({**measured, "files": found, "memory": [(_peak() - before) / MIB]}))


def _list(properties: Mapping[str, str], root: Place) -> list[Listed]:
    return list(list_files(properties, root))


def _timed(seconds: list[float], call: Callable[[], T]) -> T:
    started = time.perf_counter()
    found = call()
    seconds.append(time.perf_counter() - started)
    return found


def _write(properties: Mapping[str, str], root: Place, files: int) -> None:
    places = [root.child(f"data/day={n % 30:02d}/{n:06d}.parquet") for n in range(files)]
    if root.kind is StorageKind.FILE:
        for place in places:
            path = Path(place.key)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"0" * 100)
        return
    client = raw_client(properties)
    if root.bucket not in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]:
        client.create_bucket(Bucket=root.bucket)
        client.put_bucket_versioning(Bucket=root.bucket, VersioningConfiguration={"Status": "Enabled"})
    at_once(lambda place: client.put_object(Bucket=place.bucket, Key=place.key, Body=b"0" * 100), places)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2], place_of(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
