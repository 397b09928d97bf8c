"""What the tests do where a machine lacks what they need: skipped, and with LAKEHOUSE_REQUIRE_ALL=1 failed.
What each of them needs is in its own file."""

from __future__ import annotations

import pytest

from tests.conftest import missing


@pytest.mark.parametrize(("required", "outcome"), [("0", pytest.skip.Exception), ("1", pytest.fail.Exception)])
def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, required: str, outcome: type[BaseException]) -> None:
    monkeypatch.setenv("LAKEHOUSE_REQUIRE_ALL", required)
    with pytest.raises(outcome, match="no environment for spark-4"):
        missing("no environment for spark-4")
