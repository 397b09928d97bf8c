"""Partition keys as text."""

from __future__ import annotations

import pytest

from lakehouse_assets.keys_text import keys_text


@pytest.mark.parametrize(
    ("keys", "listed", "text"),
    [
        ((), 1, "whole table"),
        (("",), 5, "whole table"),
        (("eu",), 1, "eu"),
        (("eu", "us"), 1, "eu..us (2)"),
        (("eu", "us"), 2, "eu, us"),
        (("asia", "eu", "us"), 2, "asia..us (3)"),
    ],
)
def test_keys_text(keys: tuple[str, ...], listed: int, text: str) -> None:
    assert keys_text(keys, listed=listed) == text
