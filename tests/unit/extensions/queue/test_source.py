"""A source that is not Amazon SQS, written in a few lines: all else of a tick works with it as it is."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lakehouse_assets.extensions.queue.source import Message, SourceError
from tests.support.queue_model import Calls, Killed, World

ROOT = Path(__file__).parents[4]
DAYS = ["2024-01-01", "2024-01-02", "2024-01-03"]
POISON = "not for us"


@dataclass
class FolderSource:
    """A folder of files, each of which is a message until it is acknowledged."""

    folder: Path
    batch: int = 2
    out: set[str] = field(default_factory=set)
    """The messages that this process has received."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def claim(self, owner: str) -> None:
        """Writes the owner into a file, once."""
        with suppress(FileExistsError), (self.folder / "owner").open("x") as file:
            file.write(owner)
        if (found := (self.folder / "owner").read_text()) != owner:
            raise SourceError(f"{self.folder} is of {found}")

    def depth(self) -> dict[str, int]:
        """Counts the files."""
        return {"files": len(list(self.folder.glob("*.json")))}

    def receive(self, most: int) -> list[Message]:
        """Reads files that this process has not read before."""
        with self.lock:
            paths = [path for path in sorted(self.folder.glob("*.json")) if path.name not in self.out][:most]
            self.out.update(path.name for path in paths)
        return [Message(path.name, path.read_text(), round(path.stat().st_mtime * 1000), path) for path in paths]

    def ack(self, messages: Sequence[Message]) -> int:
        """Removes the files."""
        for message in messages:
            assert isinstance(message.receipt, Path)
            message.receipt.unlink()
        return len(messages)

    def reject(self, body: str, reason: str) -> None:
        """Adds a line to the file of what was rejected."""
        with self.lock, (self.folder / "rejected").open("a") as file:
            file.write(json.dumps([body, reason]) + "\n")

    def rejected(self) -> Collection[str]:
        """The bodies of what was rejected."""
        path = self.folder / "rejected"
        return {json.loads(line)[0] for line in path.read_text().splitlines()} if path.exists() else ()


def folder(path: Path) -> Path:
    """A folder with a message for each of the days, and one that nobody can read."""
    path.mkdir()
    for day in DAYS:
        (path / f"{day}.json").write_text(json.dumps({"table": "demo.numbers", "partitions": [day]}))
    (path / "poison.json").write_text(POISON)
    return path


def test_a_tick_takes_what_a_folder_holds(tmp_path: Path) -> None:
    world, source = World(Calls()), FolderSource(folder(tmp_path / "q"))
    told = world.tick(source).run()
    assert told.depth == {"files": 4}
    assert (told.taken.received, told.taken.deleted) == (4, 4)
    (request,) = told.decision.requests
    assert list(request.keys) == DAYS
    assert source.rejected() == {POISON}
    assert source.depth() == {"files": 0}
    assert not told.faults


def test_a_message_is_acknowledged_once_it_is_durable_wherever_the_tick_dies(tmp_path: Path) -> None:
    calls = Calls()
    World(calls).tick(FolderSource(folder(tmp_path / "calm"))).run()
    for kill in range(calls.made):
        world, place = World(Calls((kill,))), folder(tmp_path / str(kill))
        with suppress(Killed):
            world.tick(FolderSource(place)).run()
        world.calls.kills = ()  # the number of calls differs by what reads at once: this death may not have come yet
        files = {path.stem for path in place.glob("*.json")}
        waiting = {item.key for item in world.inbox.waiting().values()}
        assert set(DAYS) <= files | waiting
        assert "poison" in files or FolderSource(place).rejected()
        assert world.tick(FolderSource(place)).run().decision.requests
        assert {item.key for item in world.inbox.waiting().values()} == set(DAYS)
        assert FolderSource(place).rejected() == {POISON}


def test_another_locations_source_is_left_alone(tmp_path: Path) -> None:
    source = FolderSource(folder(tmp_path / "q"))
    source.claim("somebody else")
    told = World(Calls()).tick(source).run()
    assert "somebody else" in str(told.faults["nothing was received"])
    assert source.depth() == {"files": 4}


@pytest.mark.parametrize("words", ["boto3|botocore", "ReceiptHandle|MessageId|SentTimestamp"])
def test_only_one_file_knows_amazons_library_and_its_messages(words: str) -> None:
    found = [
        path.name
        for path in (ROOT / "lakehouse_assets/extensions/queue").glob("*.py")
        if re.search(words, path.read_text())
    ]
    assert found == ["source.py"]
