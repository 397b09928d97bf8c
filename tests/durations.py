"""How long tests took, by durations.json beside it, and which of them are fast, slow or long for that.
Nothing is measured here: `python -m tests.durations JUNIT…` takes over what a run of pytest wrote by `--junitxml`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest

RECORDED = Path(__file__).with_suffix(".json")
# Seconds. A test that took less, and needs no JVM and no server, is fast; only those that took longer are listed.
FAST = 0.5
# Seconds that a test of `make test` may take without a reason.
SLOW = 20.0
NEEDS = ("spark", "server", "browser", "long")
"""Markers of tests that are not fast, whatever they took."""


def recorded() -> dict[str, float]:
    """Seconds by the test's node id, of those that took at least FAST."""
    found: dict[str, float] = json.loads(RECORDED.read_text())
    return found


def apply(items: Iterable[pytest.Item], seconds: Mapping[str, float]) -> None:
    """Mark the fast tests as ``fast``.

    Raises pytest.UsageError for tests that are long or slow without saying why in their marker.
    """
    problems = []
    for item in items:
        took = seconds.get(item.nodeid, 0.0)
        if took < FAST and not any(item.get_closest_marker(name) for name in NEEDS):
            item.add_marker("fast")
        if took > SLOW and not any(item.get_closest_marker(name) for name in ("slow", "long")):
            problems.append(
                f"{item.nodeid} took {took:.0f} s, `make test` takes no more than {SLOW:.0f} without a reason: "
                'make it shorter, or give it @pytest.mark.slow("why each change must pass it") or .long("…")'
            )
        problems += [
            f"{item.nodeid} is {marker.name} and does not say why: @pytest.mark.{marker.name}('…')"
            for marker in item.iter_markers()
            if marker.name in ("slow", "long") and not (marker.args and str(marker.args[0]).strip())
        ]
    if problems:
        raise pytest.UsageError("\n".join(problems))


def record(reports: Iterable[Path]) -> None:
    """Write the seconds of the tests in these JUnit reports in place of what is recorded of them."""
    seconds = recorded() if RECORDED.exists() else {}
    for report in reports:
        for case in ElementTree.parse(report).iter("testcase"):
            if module := case.get("classname"):
                node, took = f"{module.replace('.', '/')}.py::{case.get('name')}", float(case.get("time", 0))
                seconds.pop(node, None)
                if took >= FAST and case.find("skipped") is None:
                    seconds[node] = round(took, 1)
    RECORDED.write_text(json.dumps(dict(sorted(seconds.items())), indent=0, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    record(map(Path, sys.argv[1:]))
