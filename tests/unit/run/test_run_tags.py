"""The run tags that a person sets: what each value stands for, and which are refused. What they do is tested where they
are heeded."""

from __future__ import annotations

import re

import pytest

from lakehouse_assets.errors import BadRunTag
from lakehouse_assets.run.run_tags import RunTags


def test_no_tag_asks_for_nothing() -> None:
    assert RunTags.of({"dagster/partition": "a"}) == RunTags()


@pytest.mark.parametrize(
    ("tag", "value", "field", "means"),
    [
        ("read_all", "true", "read_all", True),
        ("read_all", "True", "read_all", True),
        ("read_all", "false", "read_all", False),
        ("append_again", "a run", "append_again", "a run"),
        ("accept_loss", "true", "accept_loss", True),
        ("release_anyway", "true", "release_anyway", True),
        ("release_again", "7", "release_again", 7),
        ("release_again", "0", "release_again", 0),
    ],
)
def test_each_value_is_read(tag: str, value: str, field: str, means: object) -> None:
    assert getattr(RunTags.of({f"lakehouse/{tag}": value}), field) == means


@pytest.mark.parametrize(
    ("tag", "value", "expected"),
    [
        ("read_all", "yes", "true or false"),
        ("read_all", "", "true or false"),
        ("release_anyway", "1", "true or false"),
        ("release_again", "one", "the number of a kept release"),
        ("release_again", "-1", "the number of a kept release"),
        ("release_again", "", "the number of a kept release"),
    ],
)
def test_a_value_that_nothing_stands_for_is_refused_by_name(tag: str, value: str, expected: str) -> None:
    with pytest.raises(BadRunTag, match=re.escape(f"the run tag lakehouse/{tag} is {value!r}, expected {expected}")):
        RunTags.of({f"lakehouse/{tag}": value})
