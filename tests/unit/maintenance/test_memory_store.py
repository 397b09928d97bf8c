"""What is remembered comes back as it was; whatever is wrong with its object, the table is maintained without."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from lakehouse_assets.declare.care import Level
from lakehouse_assets.health.gain import Gain
from lakehouse_assets.maintenance.memory import Ending, Found, Memory
from lakehouse_assets.maintenance.memory_store import MemoryStore, memory_store
from lakehouse_assets.maintenance.planned import Action, Cost, Engine
from lakehouse_assets.run.resource import Lakehouse
from resources.settings import Settings

TABLE, OTHER = UUID(int=1), UUID(int=2)


def learned() -> Memory:
    action = Action("a.t", Level.FRAGMENTS, Engine.PYTHON, (), "", Gain(files=9), Cost(10, 2.0, 0.1, 0.01))
    found = Found(
        Ending.DONE, 8, Cost(12, 3.0, 0.2, 0.02), partitions={"0:(datetime.date(2024, 1, 1),)": Ending.FAILED}
    )
    return Memory().after(action, found, "run-1", 1_700_000_000.5, 0.2)


@pytest.fixture
def store(tmp_path: Path) -> MemoryStore:
    return MemoryStore(PyArrowFileIO(), (tmp_path / "staging" / "maintenance").as_uri())


def path(store: MemoryStore) -> Path:
    return Path(store.location(TABLE).removeprefix("file://"))


def test_it_comes_back_as_it_was_and_each_table_has_its_own(store: MemoryStore) -> None:
    store.write(TABLE, Memory())
    store.write(TABLE, learned())
    assert store.read(TABLE) == learned()
    assert learned() != Memory()
    assert store.read(OTHER) == Memory()


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"version": 99}', '{"version": 1}', '{"version": 1, "last": {"x": 3}, "ratios": {}}'],
)
def test_what_is_torn_or_foreign_counts_as_empty(store: MemoryStore, content: str) -> None:
    store.write(TABLE, learned())
    path(store).write_text(content)
    assert store.read(TABLE) == Memory()
    store.write(TABLE, learned())
    assert store.read(TABLE) == learned()


def test_a_field_of_other_code_counts_as_foreign(store: MemoryStore) -> None:
    store.write(TABLE, learned())
    fields = json.loads(path(store).read_text())
    fields["ratios"] = {"fragments by Python": {"gain": 1, "luck": 2}}
    path(store).write_text(json.dumps(fields))
    assert store.read(TABLE) == Memory()


def test_a_storage_that_can_not_be_used_has_nothing_and_takes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = MemoryStore(PyArrowFileIO(), f"{(tmp_path / 'file').as_uri()}/maintenance")
    with pytest.raises(OSError):
        store.write(TABLE, learned())
    assert store.read(TABLE) == Memory()


def test_it_lies_below_staging_and_under_no_table(settings: Settings) -> None:
    location = memory_store(Lakehouse(settings)).location(TABLE)
    assert location == f"{settings.staging}/maintenance/{TABLE}/memory.json"
