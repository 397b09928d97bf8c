"""Whether files that stay do so for reasons of their own."""

from __future__ import annotations

import pytest

from lakehouse_assets.maintenance.collect.report import stayed

IMMUTABLE = PermissionError(1, "Operation not permitted")


def test_the_only_file_that_is_refused_is_one_that_stays() -> None:
    assert [*stayed([IMMUTABLE])] == [0]
    assert [*stayed([None, IMMUTABLE, "is needed"])] == [1, 2]


def test_if_all_are_refused_alike_the_storage_refuses() -> None:
    with pytest.raises(PermissionError):
        stayed([IMMUTABLE, IMMUTABLE])


def test_nothing_stays_of_nothing() -> None:
    assert stayed([]) == {}
