"""A run that fails keeps the last verdicts of the checks that it did not come to: Dagster would show them as failed.
Of a run whose process died, the same is in unit/drive/test_dead_runs.py."""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

from collections.abc import Iterator
from dataclasses import dataclass

import dagster as dg
import pytest
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecord

from lakehouse_assets.drive.liveness import KEPT, NEVER, PLANNED, keep_verdicts
from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.maintenance.health.checks import health_checks
from lakehouse_assets.maintenance.levels import LEVELS
from lakehouse_assets.run.asset import table_asset
from tests.support.faults import FaultyLake, FaultyLakehouse, Signs, span, tiny
from tests.support.tables import DAYS

TABLE = tiny()
CHECKS = ("audit", "files", "history", "storage")
AFTER = dg.AssetKey("after")


@dg.asset(key=AFTER, deps=[TABLE.key], partitions_def=DAYS, backfill_policy=dg.BackfillPolicy.single_run())
def after() -> None: ...


@dg.asset_check(asset=after)
def theirs() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=False, description="what a user's own check found")


@dataclass
class Runs:
    """Runs of a table, of an asset that is made from it, and of the checks of both."""

    lake: FaultyLake

    def run(self, *days: str) -> dg.ExecuteInProcessResult:
        definitions = dg.Definitions(
            [table_asset(TABLE, EXTENSIONS), after],
            asset_checks=[health_checks(TABLE, LEVELS), theirs],
            resources={"lakehouse": FaultyLakehouse(self.lake.settings)},
        )
        job = definitions.resolve_implicit_global_asset_job_def()
        return job.execute_in_process(instance=self.lake.instance, tags=span(days), raise_on_error=False)

    def shown(self) -> Iterator[AssetCheckExecutionRecord]:
        """What the UI shows of each check."""
        keys = [*(dg.AssetCheckKey(TABLE.key, check) for check in CHECKS), dg.AssetCheckKey(AFTER, "theirs")]
        found = self.lake.instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
        return (found[key] for key in keys)

    def evaluations(self, run: dg.ExecuteInProcessResult) -> list[dg.AssetCheckEvaluation]:
        """What the UI shows of each check, all of which is the run's."""
        assert [record.run_id for record in self.shown()] == [run.run_id] * 5
        found = [record.evaluation for record in self.shown()]
        assert all(found), "Dagster shows a planned check of a failed run as one whose execution failed"
        return [evaluation for evaluation in found if evaluation]


def without_text(kept: dg.AssetCheckEvaluation) -> dg.AssetCheckEvaluation:
    return kept.with_metadata({name: value for name, value in kept.metadata.items() if name != KEPT})


@pytest.fixture
def runs(lake: FaultyLake) -> Runs:
    return Runs(lake)


def test_checks_that_a_failed_run_did_not_come_to_keep_their_verdicts(runs: Runs) -> None:
    good = runs.run("2024-01-01")
    assert good.success
    before = runs.evaluations(good)
    assert [evaluation.passed for evaluation in before] == [True, True, True, True, False]
    Signs(runs.lake).fail("2024-01-02")
    for _ in range(2):
        failed = runs.run("2024-01-02")
        assert not failed.success
        kept = runs.evaluations(failed)
        texts = {str(evaluation.metadata[KEPT].value) for evaluation in kept}
        assert all(text.startswith("a run failed before it reached this check; this is the") for text in texts)
        assert [without_text(evaluation) for evaluation in kept] == before
    Signs(runs.lake).fail()
    again = runs.run("2024-01-02")
    assert again.success
    assert not any(KEPT in evaluation.metadata for evaluation in runs.evaluations(again))


def test_without_a_verdict_it_is_unknown_which_is_a_warning(runs: Runs) -> None:
    Signs(runs.lake).fail("2024-01-01")
    first, second = [runs.evaluations(runs.run("2024-01-01")) for _ in range(2)]
    assert {(e.passed, e.severity, e.description) for e in first} == {(False, dg.AssetCheckSeverity.WARN, NEVER)}
    assert first == second


@dg.asset(check_specs=[dg.AssetCheckSpec("audit", asset="fails"), dg.AssetCheckSpec("later", asset="fails")])
def fails(context: dg.AssetExecutionContext) -> Iterator[dg.AssetCheckResult]:
    yield dg.AssetCheckResult(check_name="audit", passed=False, description="rows are missing")
    keep_verdicts(context.instance, context.run, "fails")
    raise dg.Failure


@dg.asset(deps=[fails], check_specs=[dg.AssetCheckSpec("audit", asset="waits")])
def waits() -> Iterator[dg.AssetCheckResult]:
    yield dg.AssetCheckResult(passed=True)


@dg.asset(check_specs=[dg.AssetCheckSpec("audit", asset="runs_beside")])
def runs_beside() -> Iterator[dg.AssetCheckResult]:
    yield dg.AssetCheckResult(passed=True)


def test_a_check_that_was_evaluated_stays_as_it_is_and_one_that_is_still_to_come_is_awaited(
    instance: dg.DagsterInstance,
) -> None:
    graph = [fails, waits, runs_beside]
    dg.materialize(graph, instance=instance, raise_on_error=False, selection=[fails, waits])
    job = dg.Definitions(graph).resolve_implicit_global_asset_job_def()
    keep_verdicts(instance, instance.create_run_for_job(job), "fails")
    of = {key: history(instance, key) for key in ("fails:audit", "fails:later", "waits:audit", "runs_beside:audit")}
    assert of == {
        "fails:audit": ["rows are missing", "rows are missing"],
        "fails:later": [NEVER, NEVER],
        "waits:audit": [NEVER, NEVER],
        "runs_beside:audit": [None],
    }


def history(instance: dg.DagsterInstance, key: str) -> list[str | None]:
    """What each run says of the check; None where it is only planned."""
    asset, name = key.split(":")
    check = dg.AssetCheckKey(dg.AssetKey(asset), name)
    records = instance.event_log_storage.get_asset_check_execution_history(check, limit=10)
    said = [None if record.status is PLANNED else record.evaluation for record in records]
    return [evaluation.description if evaluation else None for evaluation in said]
