"""Messages between a launcher and a fork server: JSON over a Unix socket, with file descriptors."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

LENGTH = struct.Struct("!Q")
"""The number of bytes of a message, which comes before it."""
MOST_DESCRIPTORS = 2
"""Of one message: standard output and standard error."""


class Closed(ConnectionError):
    """The other side closed the connection before a whole message came."""


def send(connection: socket.socket, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Sends one message, with copies of open file descriptors. Raises OSError if the other side is gone."""
    data = json.dumps(message).encode()
    socket.send_fds(connection, [LENGTH.pack(len(data))], descriptors)
    connection.sendall(data)


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Waits for one message; returns it and its file descriptors.

    Raises Closed if the other side closes the connection before, OSError after a timeout, ValueError for other data.
    """
    header, descriptors, _, _ = socket.recv_fds(connection, LENGTH.size, MOST_DESCRIPTORS)
    try:
        if len(header) < LENGTH.size:
            raise Closed("no message")
        (size,) = LENGTH.unpack(header)
        data = bytearray()
        while len(data) < size:
            if not (part := connection.recv(min(1 << 20, size - len(data)))):
                raise Closed("half a message")
            data += part
        message: dict[str, Any] = json.loads(data)
    except (OSError, ValueError):
        for descriptor in descriptors:  # the caller does not get them
            os.close(descriptor)
        raise
    return message, list(descriptors)


def credentials(connection: socket.socket) -> tuple[int, int]:
    """Returns the pid and the user id of the process on the other side."""
    found = struct.Struct("3i")
    pid, user, _ = found.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, found.size))
    return pid, user
