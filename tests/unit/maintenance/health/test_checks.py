"""The checks of a table's health beside a materialization: they see what it published, and never fail its run.
The asset is a stand-in that commits without workers."""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

import dagster as dg
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table as IcebergTable

from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.maintenance.health.checks import health_checks
from lakehouse_assets.maintenance.levels import LEVELS
from lakehouse_assets.run.resource import Lakehouse
from tests.support.manifests import Crafted, Listed
from tests.support.tables import DAYS, numbers

TABLE = numbers()
FILES = 130


@pytest.fixture
def table(settings: Settings) -> IcebergTable:
    return Crafted.create(load_lake(settings), TABLE.schema, TABLE.spec, TABLE.identifier).table


def asset(settings: Settings) -> dg.AssetsDefinition:
    """In place of the table's asset."""

    @dg.asset(key=TABLE.key, partitions_def=DAYS, backfill_policy=dg.BackfillPolicy.single_run())
    def publish(context: dg.AssetExecutionContext) -> None:
        Crafted(load_lake(settings).load_table(TABLE.identifier)).list([Listed((19_723,))] * FILES)

    return publish


def materialized(
    settings: Settings, instance: dg.DagsterInstance, lakehouse: Lakehouse | None = None
) -> dg.ExecuteInProcessResult:
    tags = {"dagster/asset_partition_range_start": "2024-01-01", "dagster/asset_partition_range_end": "2024-01-03"}
    return dg.materialize(
        [asset(settings), health_checks(TABLE, LEVELS)],
        instance=instance,
        resources={"lakehouse": lakehouse or Lakehouse(settings)},
        tags=tags,
        raise_on_error=False,
    )


def test_they_see_what_the_run_published_and_a_red_one_fails_no_run(
    settings: Settings, instance: dg.DagsterInstance, table: IcebergTable
) -> None:
    result = materialized(settings, instance)
    assert result.success
    found = {evaluation.check_name: evaluation for evaluation in result.get_asset_check_evaluations()}
    assert {name: evaluation.passed for name, evaluation in found.items()} == {
        "files": False,
        "history": True,
        "storage": True,
    }
    assert found["files"].severity is dg.AssetCheckSeverity.ERROR
    assert found["files"].metadata["fragments"].value == FILES
    worst = found["files"].metadata["worst: fragments"]
    assert isinstance(worst, dg.TableMetadataValue)
    assert worst.records[0].data["partition"] == "2024-01-01"


class Broken(Lakehouse):
    """Its catalog can't be opened."""

    error: BaseException = RuntimeError("no driver for it")

    def catalog(self) -> Catalog:
        raise self.error


def test_whatever_goes_wrong_with_them_is_a_warning_of_theirs(
    settings: Settings, instance: dg.DagsterInstance, table: IcebergTable
) -> None:
    result = materialized(settings, instance, Broken(settings))
    assert result.success
    evaluations = result.get_asset_check_evaluations()
    assert [evaluation.check_name for evaluation in evaluations] == ["files", "history", "storage"]
    for evaluation in evaluations:
        assert (evaluation.passed, evaluation.severity) == (False, dg.AssetCheckSeverity.WARN)
        assert evaluation.description == "could not be read: RuntimeError: no driver for it"


def test_a_person_who_terminates_the_run_is_heard(
    settings: Settings, instance: dg.DagsterInstance, table: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Broken, "error", dg.DagsterExecutionInterruptedError())
    assert not materialized(settings, instance, Broken(settings)).success


@pytest.fixture
def defs(settings: Settings) -> dg.Definitions:
    lakehouse = Lakehouse(settings)
    return dg.Definitions(
        [asset(settings)], asset_checks=[health_checks(TABLE, LEVELS)], resources={"lakehouse": lakehouse}
    )


def executed(defs: dg.Definitions, instance: dg.DagsterInstance, *checks: str) -> list[dg.AssetCheckEvaluation]:
    """What the button Execute does."""
    selection = dg.AssetSelection.checks(*(dg.AssetCheckKey(TABLE.key, check) for check in checks))
    job = dg.define_asset_job("execute", selection=selection).resolve(asset_graph=defs.resolve_asset_graph())
    result = job.execute_in_process(instance=instance, resources=defs.resources)
    assert result.success
    return list(result.get_asset_check_evaluations())


def test_a_person_can_execute_one_of_them_alone(
    defs: dg.Definitions, instance: dg.DagsterInstance, table: IcebergTable
) -> None:
    (evaluation,) = executed(defs, instance, "history")
    assert (evaluation.check_name, evaluation.passed) == ("history", True)


def test_a_table_that_is_not_there_yet_is_no_finding(defs: dg.Definitions, instance: dg.DagsterInstance) -> None:
    evaluations = executed(defs, instance, "files", "history", "storage")
    assert [evaluation.passed for evaluation in evaluations] == [True] * 3
    assert "does not exist yet" in (evaluations[0].description or "")
