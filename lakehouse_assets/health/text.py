"""Names and describes the checks of a table's health, and writes errors and sizes as people read them.

Nothing is decided or parsed here.
"""

from __future__ import annotations

from enum import StrEnum

from lakehouse_assets.errors import LakehouseError


class Check(StrEnum):
    """The asset check that a finding belongs to."""

    FILES = "files"
    HISTORY = "history"
    STORAGE = "storage"


DESCRIPTIONS = {
    Check.FILES: "Whether the table's data files are large enough and its delete files few enough, by partition. "
    "From metadata alone; rows that delete files delete are an upper bound.",
    Check.HISTORY: "Whether the table keeps few enough snapshots for commits to be fast.",
    Check.STORAGE: "Whether the table's metadata.json and manifests are small and few enough to be read fast, and "
    "whether storage holds little that nobody needs, by the last look of the level collect.",
}


def error_text(error: Exception) -> str:
    """Returns an error as text: errors of ours are sentences, of others the class says most."""
    return str(error) if isinstance(error, LakehouseError) else f"{type(error).__name__}: {error}"


def size_text(size: float) -> str:
    """Returns a number of bytes as text for a person, rounded to three or four digits: ``64 MiB``."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}" if size < 999.5 else f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:,.4g} TiB"
