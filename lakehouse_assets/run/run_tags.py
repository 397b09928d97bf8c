"""Reads the tags by which a person asks for something special of a run, and refuses values that nothing stands for.

What each of them does is where it is heeded. Tags that runs set by themselves are not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from lakehouse_assets.errors import BadRunTag

READ_ALL = "lakehouse/read_all"
"""``true``: the step reads its inputs from their beginning, whatever was read before."""
ACCEPT_LOSS = "lakehouse/accept_loss"
"""``true``: the rows that the table's source lost before they were moved are given up, and the others are moved."""
APPEND_AGAIN = "lakehouse/append_again"
"""The id of a run: its re-execution is meant to add once more the rows that it has added. Not ``true``: Dagster copies
a run's tags to its re-executions, and these must not inherit the permission."""
RELEASE_ANYWAY = "lakehouse/release_anyway"
"""``true``: tables are released that don't fit together."""
RELEASE_AGAIN = "lakehouse/release_again"
"""The number of a kept release, whose snapshots are released once more."""


@dataclass(frozen=True)
class RunTags:
    """The values of a run's tags."""

    read_all: bool = False
    append_again: str = ""
    release_anyway: bool = False
    release_again: int | None = None
    accept_loss: bool = False

    @classmethod
    def of(cls, tags: Mapping[str, str]) -> Self:
        """Reads all of them, so that none is passed over in silence. tags: the run's. Raises BadRunTag."""
        return cls(
            _is_true(tags, READ_ALL),
            tags.get(APPEND_AGAIN, ""),
            _is_true(tags, RELEASE_ANYWAY),
            _number(tags, RELEASE_AGAIN, "the number of a kept release, such as 7"),
            _is_true(tags, ACCEPT_LOSS),
        )


def _is_true(tags: Mapping[str, str], name: str) -> bool:
    match tags.get(name, "false").lower():
        case "true":
            return True
        case "false":
            return False
    raise _unknown(tags, name, "true or false")


def _number(tags: Mapping[str, str], name: str, expected: str) -> int | None:
    text = tags.get(name)
    if text is not None and not text.isdecimal():
        raise _unknown(tags, name, expected)
    return None if text is None else int(text)


def _unknown(tags: Mapping[str, str], name: str, expected: str) -> BadRunTag:
    return BadRunTag(f"the run tag {name} is {tags[name]!r}, expected {expected}. Nothing was changed")
