"""Finds the path of a local file that has no links in it: a file has as many paths as links lead to it.

What else a location may mean is in storage/place.py. Only folders are looked at; a file that is a link is its own.
"""

from __future__ import annotations

import os
from functools import lru_cache

from lakehouse_assets.storage.place import Place, StorageKind, meanings


def without_links(place: Place) -> Place:
    """Returns the file's place with no links in the path to its folder; objects of S3 have none."""
    if place.kind is not StorageKind.FILE or "\0" in place.key:
        return place
    folder, _, name = place.key.rpartition("/")
    return Place(place.kind, place.bucket, f"{_real(folder or '/').rstrip('/')}/{name}")


def folder_without_links(folder: Place) -> Place:
    """Returns the folder's place with no links in its path, whether the folder exists or not."""
    return Place(folder.kind, folder.bucket, _real(folder.key)) if folder.kind is StorageKind.FILE else folder


@lru_cache(maxsize=4096)
def _real(folder: str) -> str:
    return os.path.realpath(folder)


def all_meanings(location: str) -> frozenset[Place]:
    """Returns all places that some client takes the location for, and the same without links. Raises UnknownStorage."""
    found = meanings(location)
    return found | frozenset(map(without_links, found))
