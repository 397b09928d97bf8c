"""Times as people write and read them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

FRACTION = re.compile(r"[.,](\d+)")


def shown_time(time: datetime) -> str:
    """Returns a time to the millisecond, as parse_time() reads it."""
    return f"{time:%Y-%m-%d %H:%M:%S}.{time.microsecond // 1000:03} UTC"


def parse_time(text: str) -> datetime:
    """Returns the last moment of a time in ISO 8601 (by default UTC), or from shown_time().

    A time without a fraction means its whole second. Raises ValueError for other text.
    """
    found = datetime.fromisoformat(text.removesuffix(" UTC"))
    digits = min(len(fraction[1]), 6) if (fraction := FRACTION.search(text)) else 0
    return found.replace(tzinfo=found.tzinfo or UTC) + timedelta(microseconds=10 ** (6 - digits) - 1)
