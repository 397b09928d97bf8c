"""What a run asks of S3 and Glue to hand a table off, recorded in deploy/proof/hand_off.json, for roles.yaml's proof.
moto asks no policies: a key tells the run from readers. What comes of hand-offs is test_hand_off.py's."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from lakehouse_assets.errors import LakehouseError
from lakehouse_assets.storage import objects
from tests.support.aws_wire import Break, Wire, aws_wire
from tests.support.hand_offs import REPLICA, HandOffLake, hand_off_lake
from tests.support.proxy import proxy
from tests.support.recorded_calls import Recorder, assert_recorded
from tests.support.servers import moto

pytestmark = pytest.mark.server
KEY = "of-the-run"


@pytest.fixture
def recorder() -> Recorder:
    return Recorder({KEY: ("run",)})


@pytest.fixture
def wire(recorder: Recorder) -> Iterator[Wire]:
    with moto() as server, proxy(server.uri, heard=recorder.hear) as front, aws_wire(front.uri) as state:
        yield state


@pytest.fixture
def lake(wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HandOffLake]:
    (tmp_path / "warehouse").mkdir()
    with hand_off_lake(wire, tmp_path, monkeypatch) as found:
        objects._client.cache_clear()
        for name in ("AWS_ACCESS_KEY_ID", "PYICEBERG_CATALOG__LAKE__S3__ACCESS_KEY_ID"):
            monkeypatch.setenv(name, KEY)
        yield found


def test_the_calls_are_those_that_the_policies_are_proved_by(lake: HandOffLake, wire: Wire, recorder: Recorder) -> None:
    """Two versions, one that Glue refuses, one whose time is over."""
    lake.write(1)
    lake.run("first")
    lake.write(2)
    lake.clock.due.append((timedelta(minutes=1), lake.replicate))
    lake.run("second", replicas=[REPLICA])
    lake.write(3)
    wire.breaks = lambda call: Break.DENIED if call == "CreateTable" else None
    with pytest.raises(LakehouseError):
        lake.run("refused")
    wire.breaks = lambda call: None
    lake.clock.time += timedelta(days=365)
    lake.write(4)
    assert lake.run("third").removed
    assert lake.reader.generation() == 4
    assert_recorded("hand_off.json", (call for call in recorder.calls if "/staging/" not in call.resource))
