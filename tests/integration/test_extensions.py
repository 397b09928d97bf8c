"""A feature of somebody else's plugs into runs, workers, commits, expiry, the UI and the code location."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from lakehouse_assets.build_location import code_location
from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.table import Table
from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.maintenance.job import maintenance_job
from lakehouse_assets.run.asset import table_asset
from lakehouse_assets.run.domain import Domain
from lakehouse_assets.run.resource import Lakehouse
from tests.conftest import Lake
from tests.support import toy_extension
from tests.support.toy_extension import Toy

TABLE = Table("demo.greetings", [column("greeting", "string")], "tests.support.toy_extension:step")


@pytest.mark.spark
@pytest.mark.usefixtures("inline")
def test_a_feature_in_one_file_plans_tells_workers_commits_shows_and_keeps(lake: Lake) -> None:
    extensions, resources = [*EXTENSIONS, Toy()], {"lakehouse": Lakehouse(lake.settings)}
    asset = table_asset(TABLE, extensions)
    result = dg.materialize([asset], instance=lake.instance, resources=resources)
    (event,) = result.get_asset_materialization_events()
    greeted = lake.table(TABLE).current_snapshot()
    assert lake.rows(TABLE).to_pylist() == [{"greeting": "hello demo.greetings"}]
    assert greeted.summary["toy.greeting"] == "hello demo.greetings"
    assert event.materialization.metadata["greeted"].value == "chunk 0"

    for _ in range(2):  # snapshots that nothing keeps
        lake.table(TABLE).overwrite(pa.table({"greeting": pa.array(["bye"])}))
    age = {"history.expire.max-snapshot-age-ms": "1", "history.expire.min-snapshots-to-keep": "1"}
    lake.table(TABLE).transaction().set_properties(age).commit_transaction()
    config = {"tables": [], "levels": ["expire"], "dry_run": False, "patient": False, "force": True}
    job = maintenance_job([TABLE], extensions)
    assert job.execute_in_process(config, instance=lake.instance, resources=resources).success
    head = lake.table(TABLE).current_snapshot()
    assert {one.snapshot_id for one in lake.table(TABLE).snapshots()} == {greeted.snapshot_id, head.snapshot_id}

    names = {sensor.name for sensor in code_location(Domain("demo", [TABLE]), extensions=[Toy()]).sensors or ()}
    assert "toy" in names
    assert len(Path(toy_extension.__file__).read_text().splitlines()) < 60
