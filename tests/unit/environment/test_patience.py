"""A series of failures is measured from its first one, and a success ends it."""

from __future__ import annotations

from lakehouse_assets.environment.launchers.base import Patience


def test_failures_are_borne_for_so_long_from_the_first_of_them() -> None:
    patience = Patience(10.0)
    assert [patience.failed(now) for now in (0.0, 5.0, 10.0, 10.1)] == [False, False, False, True]


def test_a_success_ends_the_series() -> None:
    patience = Patience(10.0)
    patience.failed(100.0)
    patience.succeeded()
    assert not patience.failed(200.0)
    assert not patience.failed(210.0)
    assert patience.failed(211.0)
