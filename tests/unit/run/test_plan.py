"""Which chunks a run has, and which of them an earlier attempt published already.
How the chunks are driven is test_drive.py's."""

from __future__ import annotations

import uuid

import botocore.session
import pytest

from lakehouse_assets.drive.chunk import Chunk
from lakehouse_assets.run.plan import plan_chunks, publish_token, published_chunks, published_otherwise
from tests.support.tables import numbers, published_by, whole

KEYS = [f"2024-01-{n:02}" for n in range(1, 8)]


def chunks(size: int) -> list[Chunk]:
    return plan_chunks(numbers(partitions_per_worker=size), KEYS)


@pytest.mark.parametrize(("size", "sizes"), [(None, [7]), (3, [3, 3, 1]), (7, [7]), (1, [1] * 7)])
def test_chunks_hold_all_keys_in_order(size: int | None, sizes: list[int]) -> None:
    planned = plan_chunks(numbers(partitions_per_worker=size), KEYS)
    assert [len(chunk.keys) for chunk in planned] == sizes
    assert [chunk.ordinal for chunk in planned] == list(range(len(sizes)))
    assert [key for chunk in planned for key in chunk.keys] == KEYS


def test_a_table_without_partitions_is_one_chunk() -> None:
    assert plan_chunks(whole(), ()) == [Chunk(0, ())]


# Parts of a run


def test_all_chunks_are_published_with_the_runs_own_token() -> None:
    planned = chunks(3)
    assert publish_token("run", planned, planned) == "run"
    assert published_chunks("t", published_by("run"), "run", planned) == {0: 1, 1: 1, 2: 1}


def test_parts_add_up_and_are_no_repetition_of_each_other() -> None:
    planned = chunks(1)
    parts = [[planned[n] for n in part] for part in ((0, 1, 2, 5), (4,))]
    names = [publish_token("run", planned, part) for part in parts]
    assert len({*names, "run"}) == 3
    assert published_chunks("t", published_by(*names), "run", planned) == {0: 1, 1: 1, 2: 1, 5: 1, 4: 2}


def test_a_part_of_many_pieces_has_a_name_that_glue_takes() -> None:
    run = str(uuid.uuid4())
    planned = [Chunk(n, (str(n),)) for n in range(1000)]
    name = publish_token(run, planned, planned[::2])
    model = botocore.session.get_session().get_service_model("glue")
    longest = model.shape_for("TableInput").members["Parameters"].key.metadata["max"]
    published = published_by(name)
    # PyIceberg makes parameters of a table's properties.
    assert all(len(key) <= longest for key in published.properties)
    assert published_chunks("t", published, run, planned) == dict.fromkeys(range(0, 1000, 2), 1)


def test_parts_of_another_plan_or_run_do_not_count() -> None:
    name = publish_token("run", chunks(1), chunks(1)[:2])
    assert published_chunks("t", published_by(name), "run", chunks(3)) == {}
    assert published_otherwise(published_by(name), "run", chunks(3))
    assert not published_otherwise(published_by(name, "run"), "run", chunks(1))
    assert not published_otherwise(published_by(name), "ru", chunks(1))
    assert published_chunks("t", published_by(name), "ru", chunks(1)) == {}
    assert published_chunks("t", published_by("run-2"), "run", chunks(1)) == {}
