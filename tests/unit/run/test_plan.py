"""Which chunks a run has, and which of them an earlier attempt published already.
How the chunks are driven is test_drive.py's."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from pathlib import Path

import botocore.session
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from lakehouse_assets.drive.chunks import Chunk
from lakehouse_assets.errors import ForeignVersion, PublishRefused
from lakehouse_assets.extensions.queue.hook import QueueRecords
from lakehouse_assets.inputs.hook import Pins
from lakehouse_assets.run.plan import (
    Plans,
    RunPlan,
    plan_chunks,
    publish_token,
    published_chunks,
    refuse_unplanned_parts,
)
from lakehouse_assets.wire.work import decode
from tests.support.tables import numbers, published_by, run_plan, whole

KEYS = [f"2024-01-{n:02}" for n in range(1, 8)]


@pytest.mark.parametrize(("size", "sizes"), [(None, [7]), (3, [3, 3, 1]), (7, [7]), (1, [1] * 7)])
def test_chunks_hold_all_keys_in_order(size: int | None, sizes: list[int]) -> None:
    planned = plan_chunks(numbers(partitions_per_worker=size), KEYS)
    assert [len(chunk.keys) for chunk in planned] == sizes
    assert [chunk.ordinal for chunk in planned] == list(range(len(sizes)))
    assert [key for chunk in planned for key in chunk.keys] == KEYS


def test_a_table_without_partitions_is_one_chunk() -> None:
    assert plan_chunks(whole(), ()) == [Chunk(0, ())]


# The plan of a run

TABLE = uuid.uuid4()


def plan(token: str = "run", size: int = 1, keys: list[str] = KEYS) -> RunPlan:
    return run_plan(token, plan_chunks(numbers(partitions_per_worker=size), keys), table_uuid=TABLE)


@pytest.fixture
def plans(tmp_path: Path) -> Plans:
    return Plans("demo.numbers", PyArrowFileIO(), str(tmp_path))


def test_a_plan_is_read_as_it_was_written(plans: Plans) -> None:
    assert plans.find("run") is None
    plans.write(written := plan())
    assert plans.find("run") == written
    assert plans.find("other") is None


def test_half_a_plan_is_none_as_nothing_started_after_it(plans: Plans) -> None:
    plans.write(plan())
    file = Path(plans.location("run"))
    file.write_bytes(file.read_bytes()[:-20])
    assert plans.find("run") is None


@pytest.mark.parametrize(
    "change", [('"version": 2', '"version": 3'), ('"run_id"', '"runs_id"'), ('"code_version": "1", ', "")], ids=str
)
def test_a_plan_of_other_code_is_refused_by_name(plans: Plans, change: tuple[str, str]) -> None:
    plans.write(plan())
    file = Path(plans.location("run"))
    file.write_text(file.read_text().replace(*change))
    with pytest.raises(ForeignVersion, match=rf"{file}(.|\n)*(version|runs_id|code_version)(.|\n)*again in a new run"):
        plans.find("run")


def test_a_plan_of_version_1_is_read_with_its_parts_as_extensions(plans: Plans) -> None:
    """It had the extensions' parts as fields. A run that it planned can be resumed for some days."""
    pin = {"name": "demo.t", "uuid": str(uuid.uuid4()), "snapshot_id": 7, "schema_id": 0, "metadata": "file:///copy"}
    covers = {"2024-01-01": {"names": ["a"], "messages": 3, "sent_ms": 5000}}
    planned = plan()
    fields = planned.to_fields() | {"version": 1, "inputs": [pin], "covers": covers, "source": None, "upstream": {}}
    del fields["extensions"]
    Path(plans.prefix, "run").mkdir(parents=True, exist_ok=True)
    Path(plans.location("run")).write_text(json.dumps(fields))
    assert plans.find("run") == replace(planned, extensions={"inputs": [pin], "covers": covers})
    assert decode(Pins, [pin])[0].snapshot_id == 7
    recorded = QueueRecords(plans).covers("run")
    assert recorded
    assert recorded.names()["2024-01-01"] == {"a"}


def test_a_run_that_is_not_what_was_planned_is_refused() -> None:
    planned = plan()
    planned.refuse_other("demo.t", KEYS, TABLE)
    with pytest.raises(PublishRefused, match=r"demo\.t.*2024-01-01.*2024-01-02.*again"):
        planned.refuse_other("demo.t", KEYS[1:], TABLE)
    with pytest.raises(PublishRefused, match=r"demo\.t.*created again"):
        planned.refuse_other("demo.t", KEYS, uuid.uuid4())


# Parts of a run


def test_all_chunks_are_published_with_the_runs_own_token() -> None:
    planned = plan(size=3)
    assert publish_token(planned, planned.chunks) == "run"
    assert published_chunks("t", published_by("run"), planned) == {0: 1, 1: 1, 2: 1}


def test_parts_add_up_and_are_no_repetition_of_each_other() -> None:
    planned = plan()
    parts = [[planned.chunks[n] for n in part] for part in ((0, 1, 2, 5), (4,))]
    names = [publish_token(planned, part) for part in parts]
    assert len({*names, "run"}) == 3
    assert published_chunks("t", published_by(*names), planned) == {0: 1, 1: 1, 2: 1, 5: 1, 4: 2}


def test_a_part_of_many_pieces_has_a_name_that_glue_takes() -> None:
    run = str(uuid.uuid4())
    planned = plan(run, keys=[str(n) for n in range(1000)])
    name = publish_token(planned, planned.chunks[::2])
    model = botocore.session.get_session().get_service_model("glue")
    longest = model.shape_for("TableInput").members["Parameters"].key.metadata["max"]
    published = published_by(name)
    # PyIceberg makes parameters of a table's properties.
    assert all(len(key) <= longest for key in published.properties)
    assert published_chunks("t", published, planned) == dict.fromkeys(range(0, 1000, 2), 1)


def test_parts_of_another_run_do_not_count() -> None:
    name = publish_token(plan(), plan().chunks[:2])
    assert published_chunks("t", published_by(name), plan("ru")) == {}
    assert published_chunks("t", published_by("run-2"), plan()) == {}


def test_parts_whose_plan_is_gone_are_refused() -> None:
    name = publish_token(plan(), plan().chunks[:2])
    with pytest.raises(PublishRefused, match=r"demo\.t.*plan is gone.*only the other partitions"):
        refuse_unplanned_parts("demo.t", published_by(name), "run")
    refuse_unplanned_parts("demo.t", published_by(name), "ru")
    refuse_unplanned_parts("demo.t", published_by("run"), "run")
