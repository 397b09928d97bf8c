"""Run tags by which a person asks for something special."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from lakehouse_assets.errors import BadRunTag

READ_ALL = "lakehouse/read_all"
"""``true``: the step reads its inputs from their beginning."""
ACCEPT_LOSS = "lakehouse/accept_loss"
"""``true``: gives up rows that the source lost before they were moved into the table."""
APPEND_AGAIN = "lakehouse/append_again"
"""The id of the run whose rows this re-execution may add again. Not ``true``: Dagster copies a run's tags to its
re-executions, and these must not inherit the permission."""
RELEASE_ANYWAY = "lakehouse/release_anyway"
"""``true``: releases tables that don't fit together."""
RELEASE_AGAIN = "lakehouse/release_again"
"""The number of a kept release to release again."""


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
        """Reads all tags, even those that the run does not use, so that no wrong value is ignored. Raises BadRunTag."""
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
