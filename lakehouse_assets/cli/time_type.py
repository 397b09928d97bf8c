"""The type of options that are times."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from lakehouse_assets.time_text import parse_time


class TimeType(click.ParamType[datetime]):
    """Reads a time as parse_time() does."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Returns the time; fails for other text."""
        try:
            return parse_time(value)
        except (ValueError, OverflowError) as error:
            self.fail(f"{value!r} is not a time such as 2026-01-31T08:00: {error}", param, ctx)


TIME = TimeType()
