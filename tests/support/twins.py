"""Parameters of one test that repeat each other: the first is in `make test`, the others are left to `make test-long`.
Which tests have such parameters is said where they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def twins(values: Iterable[Any], why: str, keep: int = 1) -> list[Any]:
    """The values for ``pytest.mark.parametrize``, those after the first ``keep`` marked as long.

    why: what the first ones hold already, as the marker ``long`` wants it.
    """
    return [value if n < keep else _long(value, why) for n, value in enumerate(values)]


def _long(value: Any, why: str) -> Any:
    return pytest.param(*value if isinstance(value, tuple) else (value,), marks=pytest.mark.long(why))
