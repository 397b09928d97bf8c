"""Records of attempts: which one counts as the last, and what becomes of one that can't be read.
What the loop does with them is in test_drive.py and tests/integration/test_ecs.py."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from lakehouse_assets.drive.attempts import AttemptRecord, AttemptRecords
from lakehouse_assets.errors import ForeignVersion
from lakehouse_assets.protocol.versions import VERSION

ASKED_FOR = AttemptRecord(1, "EcsLauncher", "work", "2024-01-01T00:00:00+00:00")
STARTED = replace(ASKED_FOR, id="task-1")


@pytest.fixture
def records(tmp_path: Path) -> AttemptRecords:
    return AttemptRecords(PyArrowFileIO(), str(tmp_path))


def test_the_last_attempt_is_known_with_its_worker_s_id_once_that_is_recorded(records: AttemptRecords) -> None:
    assert records.last([0, 1]) == {}
    records.write(0, ASKED_FOR)
    assert records.last([0, 1]) == {0: ASKED_FOR}
    records.write(0, STARTED)
    assert records.last([0, 1]) == {0: STARTED}


def test_the_id_of_an_earlier_attempt_is_not_taken_for_the_last_one_s(records: AttemptRecords) -> None:
    records.write(0, STARTED)
    records.write(0, ASKED_FOR)
    records.write(0, further := replace(ASKED_FOR, number=2))
    assert records.last([0]) == {0: further}


def test_half_a_record_is_left_out_and_costs_nothing_that_was_recorded_before(records: AttemptRecords) -> None:
    records.write(0, ASKED_FOR)
    Path(records.location(0, with_id=True)).write_text('{"version": 1, "numb')
    assert records.last([0]) == {0: ASKED_FOR}


def test_a_record_from_before_there_were_versions_is_read(records: AttemptRecords) -> None:
    """It has the fields of version 1, and its worker may run through a deployment."""
    records.write(0, ASKED_FOR)
    location = Path(records.location(0, with_id=False))
    fields = json.loads(location.read_text())
    location.write_text(json.dumps({name: value for name, value in fields.items() if name != "version"}))
    assert records.last([0]) == {0: ASKED_FOR}


@pytest.mark.parametrize("version", [VERSION + 1, None])
@pytest.mark.parametrize("with_id", [False, True])
def test_a_record_in_another_version_is_refused_as_its_worker_may_run(
    records: AttemptRecords, version: int | None, with_id: bool
) -> None:
    records.write(0, ASKED_FOR)
    location = records.location(0, with_id=with_id)
    Path(location).write_text(json.dumps({"version": version, "anything": "else"}))
    with pytest.raises(
        ForeignVersion, match=rf"{location} .* in version {version}, .* reads version 1.* may run.*anew"
    ):
        records.last([0])
