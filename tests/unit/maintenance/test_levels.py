"""A level is one file and one registration: a second kind, made up here, is measured, planned, done and shown."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg

from lakehouse_assets.commit.target import open_target
from lakehouse_assets.declare.options import Level, Maintenance
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.maintenance.health.findings import Check, Finding, Severity
from lakehouse_assets.maintenance.health.health import TableHealth
from lakehouse_assets.maintenance.job import maintenance_job
from lakehouse_assets.maintenance.level import Action, Candidate, Gain, MaintenanceContext, MaintenanceLevel, Result
from lakehouse_assets.maintenance.levels import LEVELS
from lakehouse_assets.run.resource import Lakehouse
from tests.support.tables import whole

TABLE = whole()


class CommentLevel(MaintenanceLevel):
    """Comments tables with few snapshots."""

    name = "comment"

    def findings(self, health: TableHealth) -> Iterator[Finding]:
        yield Finding(Check.HISTORY, Severity.WARN, self.name, "it has no comment")

    def measured(self, health: TableHealth) -> str:
        return f"{health.snapshots} of 9"

    def candidates(self, health: TableHealth, care: Maintenance, *, force: bool) -> Iterator[Candidate]:
        if health.snapshots < (99 if force else 0):
            yield Candidate(health.identifier, self, "it has no comment", Gain(snapshots=1))

    def carry_out(self, means: MaintenanceContext, action: Action) -> Result:
        with means.catalog.load_table(action.table).transaction() as change:
            change.set_properties({"comment": "made up"})
        return Result(Gain(snapshots=1), summary="commented")


def test_every_name_that_a_declaration_may_leave_out_is_a_level() -> None:
    assert {level.name for level in LEVELS} == set(Level)


def test_a_new_level_is_measured_planned_done_and_shown(settings: Settings, instance: dg.DagsterInstance) -> None:
    open_target(load_lake(settings), TABLE)

    def shown(**config: object) -> dict[str, dict[str, object]]:
        job = maintenance_job([TABLE], EXTENSIONS, (*LEVELS, CommentLevel()))
        run_config = {"levels": ["comment"], "dry_run": False, **config}
        result = job.execute_in_process(run_config, instance, resources={"lakehouse": Lakehouse(settings)})
        (output,) = [event.step_output_data for event in result.all_events if event.is_successful_output]
        tables = {name: getattr(value, "records", ()) for name, value in output.metadata.items()}
        return {name: dict(records[0].data) for name, records in tables.items() if records}

    assert shown() == {"measured": {"table": TABLE.identifier, "comment": "0 of 9"}}
    found = shown(force=True)
    assert found["plan"]["why"] == "it has no comment"
    assert found["done"]["result"] == "commented"
    assert load_lake(settings).load_table(TABLE.identifier).properties["comment"] == "made up"
    (record,) = instance.event_log_storage.get_asset_check_execution_history(
        dg.AssetCheckKey(TABLE.key, Check.HISTORY.value), limit=1
    )
    assert record.evaluation
    assert record.evaluation.description == "it has no comment (comment fixes it)"
