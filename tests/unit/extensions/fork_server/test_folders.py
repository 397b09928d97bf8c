"""The folders of fork servers: whose processes live, who gets an idle one, what is removed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lakehouse_assets.extensions.fork_server import channel, folders
from lakehouse_assets.extensions.fork_server.folders import About, Folder


def test_a_folder_lives_as_long_as_a_process_holds_its_lock(tmp_path: Path) -> None:
    folder, lock = folders.made(tmp_path / "workers")
    holder = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[lock])
    os.close(lock)
    assert folders.alive(tmp_path / "workers") == [folder]
    holder.kill()
    holder.wait()
    assert folders.alive(tmp_path / "workers") == []
    assert not folder.path.exists()


def test_a_folder_of_a_launcher_that_died_as_it_made_it_is_removed_in_time(tmp_path: Path) -> None:
    begun = tmp_path / f"{folders.UNFINISHED}begun"
    begun.mkdir()
    assert folders.alive(tmp_path) == []
    assert begun.exists(), "another launcher may be about to lock it"
    old = time.time() - folders.ABANDONED_SECONDS - 1
    os.utime(begun, (old, old))
    folders.alive(tmp_path)
    assert not begun.exists()


def test_those_idle_for_longest_come_first(tmp_path: Path) -> None:
    locks = []
    for since in (3.0, None, 1.0, 2.0):
        folder, lock = folders.made(tmp_path)
        folder.tell(About({}, idle_since=since))
        locks.append(lock)
    assert [one.about.idle_since for one in folders.alive(tmp_path)] == [1.0, 2.0, 3.0, None]
    for lock in locks:
        os.close(lock)


def test_of_two_launchers_at_once_one_gets_an_idle_server(tmp_path: Path) -> None:
    """However deep its folder is: the address of a socket has 107 bytes."""
    workers = tmp_path.joinpath(*["deep" * 10] * 5)
    folder, lock = folders.made(workers)
    listener = folder.listening()
    got: list[object] = []
    connections = [folder.connected(), folder.connected()]

    def ask(number: int) -> None:
        try:
            channel.send(connections[number], {"number": number}, (1, 2))
            got.append(channel.receive(connections[number])[0])
        except OSError as error:
            got.append(type(error))

    threads = [threading.Thread(target=ask, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    accepted, _ = listener.accept()
    _, descriptors = channel.receive(accepted)
    folder.socket.unlink()
    listener.close()
    channel.send(accepted, {"accepted": 1})
    for thread in threads:
        thread.join()
    assert {"accepted": 1} in got
    assert len([one for one in got if one != {"accepted": 1}]) == 1
    assert len(descriptors) == 2
    assert not folder.is_idle
    with pytest.raises(OSError, match="No such file"):
        folder.connected()
    for descriptor in (*descriptors, lock):
        os.close(descriptor)


def test_half_a_message_is_an_error(tmp_path: Path) -> None:
    folder, lock = folders.made(tmp_path)
    listener = folder.listening()
    connection = folder.connected()
    accepted, _ = listener.accept()
    connection.send(channel.LENGTH.pack(100) + b"{")
    connection.close()
    with pytest.raises(channel.Closed):
        channel.receive(accepted)
    os.close(lock)


def test_anothers_folder_is_not_used(tmp_path: Path) -> None:
    if os.getuid():
        pytest.skip("only root can give a folder away")
    workers = tmp_path / "workers"
    workers.mkdir()
    os.chown(workers, 65534, 65534)
    with pytest.raises(PermissionError):
        folders.made(workers)


def test_nobody_else_may_enter_a_folder(tmp_path: Path) -> None:
    folder, lock = folders.made(tmp_path / "workers")
    assert folder.path.stat().st_mode & 0o77 == 0
    assert Folder(folder.path).is_alive
    os.close(lock)
