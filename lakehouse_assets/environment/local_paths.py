"""Makes locations of this machine's paths, and paths of locations: the one spelling for PyIceberg, Spark and us.

Also where a home's folders are. What a location means to the collector is in storage/place.py.
"""

from __future__ import annotations

import re
from pathlib import Path

FILE_URL = re.compile(r"(?:(?i:file):(?://(?:localhost)?(?=/)|(?!//)))?(/.*)", re.DOTALL)
"""A path of this machine, or its URL; one of another host is no place here."""
OF_A_HOME = ("catalog.db", "dagster")
"""What a home that has been used holds itself."""


def location_of(path: Path) -> str:
    """Returns the location of an absolute path: its URL if that has nothing to percent-encode, else the path itself.

    PyIceberg and Hadoop decode no ``%20``; other readers do. PyIceberg ends a URL, but not a plain path, at ``#`` or
    ``?``. So the plain path is the one spelling of ``/My Projects #1`` that all of them take for the same folder.
    """
    url = path.as_uri()
    return url if url == f"file://{path}" else str(path)


def path_of(location: str) -> Path | None:
    """Returns the path that a location names, undecoded; None if it is not on this machine."""
    found = FILE_URL.fullmatch(location)
    return Path(found[1]) if found else None


def folder_of(home: Path, name: str) -> Path:
    """Returns the folder for the warehouse or for staged files of a home.

    Older versions put that of a home in ``My Projects`` into ``My%20Projects``. A home in use that has it there
    keeps it there, because the tables' metadata names its files.
    """
    own, encoded = home / name, Path(home.as_uri().removeprefix("file://"), name)
    in_use = any((home / file).exists() for file in OF_A_HOME)
    return encoded if encoded != own and in_use and not own.exists() and encoded.is_dir() else own
