"""Which tests are refused for what they took: durations.py, by made-up tests.
The real ones are looked at by each run's collection."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import durations

TESTS = Path(durations.__file__).parent
NODE = "tests/unit/test_durations.py::b"


@pytest.fixture
def items(request: pytest.FixtureRequest) -> list[pytest.Item]:
    """One test, without markers."""
    return [pytest.Function.from_parent(request.node.parent, name="b", callobj=lambda: None)]


@pytest.mark.parametrize(("seconds", "fast"), [({}, True), ({NODE: 0.6}, False)])
def test_what_took_no_time_is_fast(items: list[pytest.Item], seconds: dict[str, float], fast: bool) -> None:
    durations.apply(items, seconds)
    assert bool(items[0].get_closest_marker("fast")) is fast


def test_what_takes_long_must_say_why(items: list[pytest.Item]) -> None:
    with pytest.raises(pytest.UsageError, match=f"{NODE} took 21 s"):
        durations.apply(items, {NODE: 21.0})
    items[0].add_marker(pytest.mark.slow("It has to."))
    durations.apply(items, {NODE: 21.0})


@pytest.mark.parametrize("name", ["slow", "long"])
def test_a_marker_without_a_reason_is_refused(items: list[pytest.Item], name: str) -> None:
    items[0].add_marker(name)
    with pytest.raises(pytest.UsageError, match=f"{NODE} is {name} and does not say why"):
        durations.apply(items, {})


def test_what_a_run_took_replaces_what_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durations, "RECORDED", tmp_path / "durations.json")
    report = tmp_path / "junit.xml"
    case = '<testcase classname="tests.x.test_y" name="{}" time="{}"/>'
    report.write_text(f"<a>{case.format('test_1', 3.14)}{case.format('test_2[a.b]', 0.7)}</a>")
    durations.record([report])
    assert durations.recorded() == {"tests/x/test_y.py::test_1": 3.1, "tests/x/test_y.py::test_2[a.b]": 0.7}
    report.write_text(f"<a>{case.format('test_1', 0.1)}</a>")
    durations.record([report])
    assert durations.recorded() == {"tests/x/test_y.py::test_2[a.b]": 0.7}


def test_the_tests_that_reasons_name_exist() -> None:
    there = {path.name for path in TESTS.rglob("test_*.py")}
    for path in TESTS.rglob("*.py"):
        for line in path.read_text().splitlines():
            if re.search(r"\b(long|slow|twins)\(", line):
                assert {*re.findall(r"test_\w+\.py", line)} <= there, f"{path.name}: {line}"
