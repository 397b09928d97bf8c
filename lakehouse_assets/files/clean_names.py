"""Makes names of columns that Iceberg and Spark take out of those that files have."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from lakehouse_assets.type_text import NAME, RESERVED


def clean_names(names: Sequence[str]) -> list[str]:
    """Returns a name for each of a file's, in snake case where it has to differ; no two are equal but for case.

    Example:
        >>> clean_names(["id", "Flight No.", "", "1960", "Größe", "P95", "p95"])
        ['id', 'flight_no', 'row', 'c_1960', 'grosse', 'P95', 'p95_2']
    """
    found: list[str] = []
    for place, name in enumerate(names):
        wanted = name if NAME.fullmatch(name) and name.lower() not in RESERVED else _snake_case(name, place)
        taken = {other.lower() for other in found}
        numbered = (f"{wanted}_{number}" for number in range(2, len(names) + 2))
        found.append(next(one for one in (wanted, *numbered) if one.lower() not in taken))
    return found


def _snake_case(name: str, place: int) -> str:
    plain = unicodedata.normalize("NFKD", name.replace("ß", "ss")).encode("ascii", "ignore").decode()
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", plain)
    words = re.sub(r"[^A-Za-z0-9]+", "_", spaced).strip("_").lower()
    if not words:
        return f"c_{place + 1}" if place else "row"
    return words if words[0].isalpha() else f"c_{words}"
