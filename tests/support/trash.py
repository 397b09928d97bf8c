"""A table's folder full of awkward files, a trash for it, and a process that is killed in the middle of moving them.
What must hold then is each test's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lakehouse_assets.collect.listing import Listed, list_files
from lakehouse_assets.collect.place import Place, place_of
from lakehouse_assets.collect.trash import Due, Owner, PurgeReport, RestoreReport, Selection, Trash, TrashReport

NAMES = (
    *("data/keep#1.parquet", "data/keep", "data/q?x=1", "data/a b", "data/p%2Fq", "data/p/q", "data/n\nl"),
    *("data/pl+us", "data/caf\u00e9", "data/cafe\u0301", "data/day=2013-01-01/1.parquet", "metadata/1.json"),
    "data/'\"&<>",
)
OWNER = Owner("demo.numbers", "6f9619ff-8b86-d011-b42d-00c04fc964ff")
RUN = "run-1"
ORDER = "LAKEHOUSE_TEST_ORDER"


@dataclass(frozen=True)
class Shelf:
    """A table's folder and its trash. properties, staging, root: as Trash.for_location() has them."""

    properties: Mapping[str, str]
    staging: str
    root: str
    written: dict[str, bytes] = field(default_factory=dict)

    @property
    def place(self) -> Place:
        return place_of(self.root)

    def trash(self) -> Trash:
        return Trash.for_location(self.properties, self.staging, OWNER, self.place)

    def listed(self) -> list[Listed]:
        return sorted(list_files(self.properties, self.place), key=lambda found: found.place)

    def names(self) -> set[str]:
        return {found.place.key.removeprefix(self.place.child("").key) for found in self.listed()}

    def due(self, files: Iterable[Listed] | None = None) -> list[Due]:
        return [Due(found, "no snapshot has it", 1) for found in (self.listed() if files is None else files)]

    def put(self, files: Iterable[Listed] | None = None, run: str = RUN) -> TrashReport:
        return self.trash().put(self.due(files), run)

    def restore(self, **selection: Any) -> RestoreReport:
        return self.trash().restore(Selection(**selection))

    def purge(self, now_ms: int) -> PurgeReport:
        return self.trash().purge(now_ms)

    def start(self, action: str, effect: int, due: Iterable[Listed] = (), now_ms: int = 0) -> bool:
        """Put, restore or purge in a process that is killed before its n-th effect on the storage (from 0).

        Whether it was killed; False: it came to its end before. Raises where it failed otherwise.
        """
        listed = [(f.place.location, f.size, f.modified_ms, f.etag) for f in due]
        shelf = (dict(self.properties), self.staging, self.root)
        order = {"action": action, "effect": effect, "shelf": shelf, "due": listed, "now_ms": now_ms}
        command = [sys.executable, "-m", "tests.support.trash"]
        done = subprocess.run(command, env={**os.environ, ORDER: json.dumps(order)}, capture_output=True, text=True)
        if done.returncode not in (0, -signal.SIGKILL):
            raise RuntimeError(done.stderr)
        return done.returncode != 0


def doomed(effect: int, folders: tuple[str, ...]) -> Callable[[], None]:
    """What is to be called before each effect: kills this process at the n-th. Effects on local folders call it."""
    left = [effect]

    def call() -> None:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event in ("os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir") or (
            event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        )
        # Relative names are those that shutil.rmtree removes in an open folder.
        if writes and (arguments[-1] != -1 or str(arguments[0]).startswith(folders)):
            call()

    sys.addaudithook(audit)
    return call


def main() -> None:
    order = json.loads(os.environ[ORDER])
    properties, staging, root = order["shelf"]
    shelf = Shelf(properties, staging, root)
    files = [Listed(place_of(location), *rest) for location, *rest in order["due"]]
    trash = shelf.trash()
    call = doomed(order["effect"], (root, staging) if root.startswith("/") else ("nowhere",))
    if not root.startswith("/"):
        _count_requests(call)
    match order["action"]:
        case "put":
            trash.put(shelf.due(files), RUN)
        case "restore":
            trash.restore(Selection())
        case "purge":
            trash.purge(order["now_ms"])


def _count_requests(call: Callable[[], None]) -> None:
    from botocore.httpsession import URLLib3Session

    send = URLLib3Session.send

    def sent(session: URLLib3Session, request: Any) -> Any:
        if request.method != "GET" and request.method != "HEAD":
            call()
        answer = send(session, request)
        if request.method != "GET" and request.method != "HEAD":
            call()  # done, and not known
        return answer

    URLLib3Session.send = sent


if __name__ == "__main__":
    main()
