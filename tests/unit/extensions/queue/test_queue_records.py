"""What a table's runs have written down for the queue: what they cover, by their plans, and why they failed."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from lakehouse_assets.drive.chunks import Chunk
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.extensions.queue.hook import Covered, QueueRecords, RunQueue
from lakehouse_assets.extensions.queue.inbox import Failed, PartitionMessages
from lakehouse_assets.run.plan import Plans
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.wire.work import encode
from tests.support.tables import run_plan

COVERED = {"1": PartitionMessages(("a", "b"), 3, 5_000)}


@pytest.fixture
def plans(tmp_path: Path) -> Plans:
    return Plans("demo.numbers", PyArrowFileIO(), str(tmp_path))


def test_a_run_covers_what_its_plan_says(plans: Plans) -> None:
    plans.write(
        plan := run_plan(
            "r1", [Chunk(0, ("1", "2"))], snapshot_id=42, extensions={RunQueue.name: encode(Covered, COVERED)}
        )
    )
    assert plans.find("r1") == plan
    covers = QueueRecords(plans).covers("r1")
    assert covers
    assert covers.names() == {"1": frozenset("ab"), "2": frozenset()}
    assert covers.snapshot_id == 42
    assert QueueRecords(plans).keys_of("r1") == ("1", "2")


def test_of_a_run_without_a_plan_and_of_one_in_another_version_nothing_is_known(plans: Plans) -> None:
    plans.write(run_plan("r1", [Chunk(0, ())]))
    location = Path(plans.location("r1"))
    location.write_text(json.dumps(json.loads(location.read_text()) | {"version": 99}))
    assert QueueRecords(plans).covers("r1") is None, "a tick must not fail because of it"
    assert QueueRecords(plans).keys_of("r2") is None


def test_a_table_without_partitions_is_one_key(plans: Plans) -> None:
    plans.write(run_plan("r1", [Chunk(0, ())]))
    assert QueueRecords(plans).keys_of("r1") == ("",)


def test_a_failure_is_read_as_written(plans: Plans) -> None:
    assert QueueRecords(plans).failed("r1") is None
    (Path(plans.prefix) / "r1").mkdir()
    QueueRecords(plans).write_failed("r1", Failed("r2", ("é",), "why"))
    assert QueueRecords(plans).failed("r1") == Failed("r2", ("é",), "why")


def test_a_run_that_failed_records_what_it_had_published(plans: Plans, settings: Settings) -> None:
    (Path(plans.prefix) / "r1").mkdir()
    run = mock.Mock(lakehouse=Lakehouse(settings), plans=plans, bad_keys=frozenset({"3"}))
    run.token.text = run.context.run.run_id = "r1"
    hook = RunQueue(run)
    hook.published(run, ["1", "2"])
    hook.failed(run, ValueError("why"))
    assert QueueRecords(plans).failed("r1") == Failed("r1", ("3",), "why", ("1", "2"))
