"""Writes errors and sizes as people read them, wherever maintenance shows them.

Nothing is decided or parsed here.
"""

from __future__ import annotations

from lakehouse_assets.errors import LakehouseError


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
