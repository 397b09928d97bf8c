"""A table's folder full of awkward files, a trash for it, and a process that is killed in the middle of moving them.
What must hold then is each test's."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from botocore.httpsession import URLLib3Session

from lakehouse_assets.maintenance.collect.ledger import Entry, Owner
from lakehouse_assets.maintenance.collect.listing import Listed, list_files
from lakehouse_assets.maintenance.collect.trash import RestoreReport, Trash, TrashReport, TrashSelection
from lakehouse_assets.storage.objects import _client
from lakehouse_assets.storage.place import Place, place_of

NAMES = (
    *("data/keep#1.parquet", "data/keep", "data/q?x=1", "data/a b", "data/p%2Fq", "data/p/q", "data/n\nl"),
    *("data/pl+us", "data/caf\u00e9", "data/cafe\u0301", "data/day=2013-01-01/1.parquet", "metadata/1.json"),
    "data/'\"&<>",
)
OWNER = Owner("demo.numbers", "6f9619ff-8b86-d011-b42d-00c04fc964ff")
RUN = "run-1"


@dataclass(frozen=True)
class Shelf:
    """A table's folder and its trash. properties, staging, root: as Trash.for_location() has them."""

    properties: Mapping[str, str]
    staging: str
    root: str

    @property
    def place(self) -> Place:
        return place_of(self.root)

    def trash(self) -> Trash:
        return Trash.for_location(self.properties, self.staging, OWNER, self.place)

    def listed(self) -> list[Listed]:
        return sorted(list_files(self.properties, self.place), key=lambda found: found.place)

    def names(self) -> set[str]:
        return {found.place.key.removeprefix(self.place.child("").key) for found in self.listed()}

    def due(self, files: Iterable[Listed] | None = None) -> list[Entry]:
        return [Entry.of(found, "no snapshot has it", 1) for found in (self.listed() if files is None else files)]

    def put(self, files: Iterable[Listed] | None = None, run: str = RUN) -> TrashReport:
        return self.trash().put(self.due(files), run)

    def restore(self, **selection: Any) -> RestoreReport:
        return self.trash().restore(TrashSelection(**selection))

    def purge(self, now_ms: int) -> TrashReport:
        return self.trash().purge(now_ms)

    def kill(self, action: Callable[[], object], effect: int) -> bool:
        """Do it in a process of its own that is killed before its n-th effect on the storage (from 0).

        Whether it was killed; False: it came to its end before.
        """
        if child := os.fork():
            _, status = os.waitpid(child, 0)
            assert status in (0, signal.SIGKILL), f"it failed: {status}"
            return status != 0
        try:
            _client.cache_clear()  # its connections are the parent's
            _doom(effect, (self.root, self.staging.removeprefix("file://")))
            action()
            os._exit(0)
        finally:
            traceback.print_exc()
            os._exit(1)


def _doom(effect: int, folders: tuple[str, ...]) -> None:
    """Kill this process before its n-th effect on the folders; an effect on S3 counts again when it is done, as nobody
    knows that yet."""
    left = [effect]

    def call() -> None:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event in ("os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir") or (
            event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        )
        # Without a folder in their name are what shutil.rmtree removes, in a folder that is open.
        if writes and (str(arguments[0]).startswith(folders) or event in ("os.remove", "os.rmdir")):
            call()

    def sent(session: URLLib3Session, request: Any) -> Any:
        has_effect = request.method not in ("GET", "HEAD")
        if has_effect:
            call()
        answer = send(session, request)
        if has_effect:
            call()
        return answer

    send, URLLib3Session.send = URLLib3Session.send, sent
    sys.addaudithook(audit)
