"""What the UI shows of the versions that a run has read."""

from __future__ import annotations

import uuid

import dagster as dg

from lakehouse_assets.inputs.hook import ui_metadata
from lakehouse_assets.run.jobs import PINNED, READS
from lakehouse_assets.wire.work import Pin
from tests.support.tables import whole


def test_a_branch_of_a_dep_is_named_apart_from_the_dep() -> None:
    table = whole(identifier="demo.copy", deps=[dg.AssetKey(["demo", "source"])], reads=["demo.source.branch_audit"])
    pins = [Pin(name, uuid.uuid4(), n, 0, "") for n, name in enumerate(("demo.source", "demo.source.branch_audit"))]
    shown = ui_metadata(table, pins, (), None)
    assert shown[PINNED] == {"demo.source": "0"}
    assert shown[READS] == {"demo.source.branch_audit": "1"}
