"""What the UI shows of the versions that a run has read."""

from __future__ import annotations

import uuid
from unittest.mock import Mock

import dagster as dg
import pytest

from lakehouse_assets.inputs.hook import PinnedInputs, ui_metadata
from lakehouse_assets.run.jobs import PINNED, READS
from lakehouse_assets.wire.work import Pin, Position, ReadOn
from tests.support.tables import whole


def test_a_branch_of_a_dep_is_named_apart_from_the_dep() -> None:
    table = whole(identifier="demo.copy", deps=[dg.AssetKey(["demo", "source"])], reads=["demo.source.branch_audit"])
    pins = [Pin(name, uuid.uuid4(), n, 0, "") for n, name in enumerate(("demo.source", "demo.source.branch_audit"))]
    shown = ui_metadata(table, pins, (), None)
    assert shown[PINNED] == {"demo.source": "0"}
    assert shown[READS] == {"demo.source.branch_audit": "1"}


@pytest.mark.parametrize(("earlier", "told"), [({}, "| changes since 7"), ({0: 5}, "| changes |")])
def test_a_run_whose_rows_an_earlier_process_published_does_not_tell_since_when(
    earlier: dict[int, int], told: str
) -> None:
    """The table has the run's own new position by then."""
    hook, pin = PinnedInputs(), Pin("demo.source", uuid.uuid4(), 7, 0, "")
    position = str(Position(7, pin.uuid))
    hook.pins, hook.read_on = (pin,), ReadOn({pin.name: position})
    run = Mock(table=whole(identifier="demo.copy", reads=[pin.name]))
    run.staging.earlier = earlier
    fork = Mock()
    fork.receipt.extensions = {"inputs": {"read_to": {pin.name: position}}}
    assert told in hook.shown(run, [fork]).of_run["inputs"].value
