"""The version that durable JSON carries: code refuses what it would misread.

What else the JSON holds is known where it is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VERSION = 1


def with_version(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a JSON object with the version added."""
    return {"version": VERSION, **fields}


def without_version(data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a JSON object without its version. Raises ValueError for another version."""
    if (version := data.get("version")) != VERSION:
        raise ValueError(
            f"this is of version {version!r}, this code reads version {VERSION}: deploy the code location and the "
            "workers from one build"
        )
    return {name: value for name, value in data.items() if name != "version"}
