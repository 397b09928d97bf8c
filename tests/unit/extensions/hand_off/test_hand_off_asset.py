"""What a hand-off may declare, what Dagster gets of it, and which of two versions readers get."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import dagster as dg
import pytest

from lakehouse_assets.declare.columns import column, schema_of
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.errors import DeclarationError
from lakehouse_assets.extensions.hand_off.glue import parameters
from lakehouse_assets.extensions.hand_off.hand_off_asset import HandOff
from lakehouse_assets.extensions.hand_off.hand_over import HandOffOutcome, HandOver
from lakehouse_assets.extensions.hand_off.records import HandOffPlan, Version, Written
from lakehouse_assets.run.resource import Lakehouse
from tests.support.hand_offs import HAND_OFF, SOURCE, rows


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"glue": "Partners.source"}, "glue is 'Partners.source', expected database.table"),
        ({"glue": "source"}, "glue is 'source', expected database.table"),
        ({"location": "s3://bucket"}, "location has 's3://bucket', expected s3://bucket/prefix"),
        ({"location": "/exports"}, "location has '/exports'"),
        ({"location": "s3://bucket/exports/"}, "without a slash at the end"),
        ({"replicas": ["s3://eu/x y"]}, "replicas has 's3://eu/x y'"),
        ({"replicas": [HAND_OFF.location]}, "replicas names a location twice"),
        ({"keep": timedelta(minutes=1)}, "keep is 0:01:00, expected at least 1:00:00"),
        ({"replicated_within": timedelta(-1)}, "must not be negative"),
        ({"partitioned_by": ["month"]}, "partitioned_by names 'month', which is not a column"),
        ({"partitioned_by": ["at"]}, "partitioned_by names at, a timestamptz"),
        ({"source": replace(SOURCE, columns=[column("who", "uuid"), column("day", "date")])}, "column who is a uuid"),
        ({"keep": 90}, "keep is 90, it must be of the type"),
    ],
)
def test_what_can_not_work_is_refused_when_it_is_declared(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        replace(HAND_OFF, **options)
    assert problem in str(refused.value)


def test_its_asset_depends_on_the_source() -> None:
    (spec,) = HAND_OFF.asset.specs
    assert spec.key.to_user_string() == "demo/hand_off/partners/source"
    assert [one.asset_key for one in spec.deps] == [SOURCE.key]


@pytest.mark.parametrize(
    ("current", "told"), [("v1", "version v1, snapshot 7"), ("v2", "version v2, which is newer than this run's")]
)
def test_the_log_names_the_snapshot_of_the_version_that_readers_get(
    current: str, told: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.now(UTC)
    plan = HandOffPlan("v1", now, SOURCE.identifier, uuid4(), 7, 1, "", (), "", "p.source", ())
    outcome = HandOffOutcome(plan, Version("v1", "v1", now, "", "p", ""), Written("v1"), current, (), ())
    monkeypatch.setattr(HandOver, "run", lambda _: outcome)
    monkeypatch.setattr(HandOff, "services", Mock())
    resources = {"lakehouse": Lakehouse(settings)}
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize([HAND_OFF.asset], instance=instance, resources=resources)
        log = [entry.user_message for entry in instance.all_logs(result.run_id)]
    assert f"{HAND_OFF.glue}: readers get {told}" in log


def test_a_dropped_table_never_replaces_the_one_that_was_created_again(settings: Settings) -> None:
    """However many snapshots the dropped one had: the run waited for a replica, and is retried."""
    lakehouse, key = Lakehouse(settings), HAND_OFF.key.to_user_string()
    catalog, now = lakehouse.catalog(), datetime.now(UTC)
    catalog.create_namespace("demo")
    found = {}
    for name, generations in (("dropped", 3), ("again", 1)):
        if catalog.table_exists(SOURCE.identifier):
            catalog.drop_table(SOURCE.identifier)
        table = catalog.create_table(SOURCE.identifier, schema_of(SOURCE.columns))
        for generation in range(generations):
            table.append(rows(generation + 1))
        head = table.current_snapshot()
        assert head
        ids = (table.metadata.table_uuid, head.snapshot_id, head.sequence_number or 0)
        plan = HandOffPlan(name, now, SOURCE.identifier, *ids, table.schema().model_dump_json(), (), "", "p.source", ())
        found[name] = plan, Version(name, name, now, f"s3://exports/{name}", "p", f"source_{name}")
    for of_view, own in (("again", "dropped"), ("dropped", "again")):
        services = Mock(catalog=catalog)
        view = {"Parameters": parameters(key, *found[of_view]), "VersionId": "1"}
        services.glue.get_table.return_value = {"Table": view}
        assert HandOver(HAND_OFF.order(own, lakehouse), services).switch(*found[own]) == "again"
        assert services.glue_once.update_table.called == (own == "again")
