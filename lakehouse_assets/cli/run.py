"""Drives the whole pipeline: every asset of the code location in topological order, each one run of this process.
Knows Definitions, not the domain: what a table is and how it is filled is the assets' own business."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TextIO

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
from dagster._core.definitions.assets.job.asset_job import IMPLICIT_ASSET_JOB_NAME
from dagster._core.definitions.reconstruct import ReconstructableJob, ReconstructableRepository
from dagster._core.definitions.repository_definition import SINGLETON_REPOSITORY_NAME
from dagster._core.execution.api import execute_run
from dagster._core.remote_origin import RemoteRepositoryOrigin
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG
from dagster._core.workspace.load_target import WorkspaceFileTarget
from dagster._utils.error import SerializableErrorInfo

from lakehouse_assets.cli.home import WORKSPACE
from lakehouse_assets.cli.instance import opened
from lakehouse_assets.cli.summary import Snapshots, summary
from lakehouse_assets.cli.terminal import Line, duration, output_to
from lakehouse_assets.drive.process_tag import process_tag
from lakehouse_assets.run.progress import listening
from resources.settings import Settings, read_settings

DEFINITIONS = "lakehouse_assets.definitions"


@dataclass(frozen=True)
class Stage:
    """What one run materializes: one asset, or several that only run together; all its partitions."""

    assets: tuple[dg.AssetKey, ...]
    partitions: tuple[str, ...] | None
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return ", ".join(".".join(key.path) for key in self.assets)


def run(settings: Settings, definitions: str = DEFINITIONS) -> int:
    """Materialize everything. Returns 0, or 1 behind the first table that failed; what depends on it is not run.

    definitions: the module that holds ``defs``. Expects home.prepare to have passed.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # both ways to end us end us alike
    with opened(settings) as (instance, reaped), output_to(settings.home / "run.log") as terminal:
        repository = ReconstructableRepository.for_module(definitions, "defs")
        graph = repository.get_definition().asset_graph
        for run_id in reaped:
            print(f"the run {run_id} had died; it is now failed, its slots are free", file=terminal)
        stages = list(_stages(graph, instance))
        before = Snapshots.of(settings, [stage.name for stage in stages])
        done = []
        for number, stage in enumerate(stages, start=1):
            started = time.time()
            with _shown(terminal, f"[{number}/{len(stages)}] {stage.name}", stage.partitions) as line:
                result = _execute(repository.get_reconstructable_job(IMPLICIT_ASSET_JOB_NAME), instance, stage)
                line.end("done" if result.success else "ended")
            if _interrupted(result):
                raise KeyboardInterrupt
            if not result.success:
                print(_failure(stage, result, settings, len(stages) - number), file=terminal)
                return 1
            done.append(replace(stage, seconds=time.time() - started))
        print(_success(settings, done, before), file=terminal)
    return 0


def _stages(graph: AssetGraph, instance: dg.DagsterInstance) -> Iterator[Stage]:
    seen: set[dg.AssetKey] = set()
    for key in graph.toposorted_asset_keys:
        if key in seen or key not in graph.materializable_asset_keys:
            continue
        together = [k for k in graph.get_execution_set_asset_and_check_keys(key) if isinstance(k, dg.AssetKey)]
        seen.update(together)
        partitions = graph.get(key).partitions_def
        keys = None if partitions is None else tuple(partitions.get_partition_keys(dynamic_partitions_store=instance))
        if keys != ():  # dynamic partitions nobody has added yet: nothing to do
            yield Stage(tuple(sorted(together)), keys)


def _execute(job: ReconstructableJob, instance: dg.DagsterInstance, stage: Stage) -> dg.JobExecutionResult:
    tags = process_tag()  # from the start: a run that is killed before its op begins is reaped too
    if stage.partitions:
        tags[ASSET_PARTITION_RANGE_START_TAG] = stage.partitions[0]
        tags[ASSET_PARTITION_RANGE_END_TAG] = stage.partitions[-1]
    # As dg.execute_job, with the location's origin as well: without it the UI can't re-execute the run.
    run = instance.create_run_for_job(
        job_def=job.get_definition(),
        tags=tags,
        asset_selection=frozenset(stage.assets),
        job_code_origin=job.get_python_origin(),
        remote_job_origin=_location().get_job_origin(IMPLICIT_ASSET_JOB_NAME),
    )
    return execute_run(job, run, instance, raise_on_error=False)


def _location() -> RemoteRepositoryOrigin:
    (location,) = WorkspaceFileTarget([str(WORKSPACE)]).create_origins()
    return RemoteRepositoryOrigin(location, SINGLETON_REPOSITORY_NAME)


@contextmanager
def _shown(terminal: TextIO, title: str, partitions: tuple[str, ...] | None) -> Iterator[Line]:
    with Line(terminal, title, partitions and len(partitions)) as line, listening(line.update):
        yield line


def _success(settings: Settings, stages: list[Stage], before: Snapshots) -> str:
    rows = [(stage.name, len(stage.partitions) if stage.partitions else None, stage.seconds) for stage in stages]
    charts = sorted((settings.home / "reports").glob("*.png"))
    return "\n".join(
        [
            f"\n{summary(settings, rows, before)}\n",
            f"all done in {duration(sum(stage.seconds for stage in stages))}",
            *(f"chart: {chart}" for chart in charts),
            f"the UI, with every run: {_ui(settings)}",
        ]
    )


def _failure(stage: Stage, result: dg.JobExecutionResult, settings: Settings, left: int) -> str:
    return "\n".join(
        [
            f"\n{stage.name} failed: {_reason(result)}",
            *([f"not run: the {left} behind it"] if left else []),
            f"look at it: {_ui(settings)}/runs/{result.run_id}",
            f"everything it logged: {settings.home / 'run.log'}",
        ]
    )


def _ui(settings: Settings) -> str:
    elsewhere = "" if settings.home == read_settings({}).home else f"LAKEHOUSE_HOME={shlex.quote(str(settings.home))} "
    return f"{elsewhere}make ui, then http://127.0.0.1:3000"


def _interrupted(result: dg.JobExecutionResult) -> bool:
    """Whether the run ended by a signal to this process: Dagster makes that a failure of the step and goes on."""
    errors = [event.step_failure_data.error for event in result.all_events if event.is_step_failure]
    return any(error and error.cls_name == dg.DagsterExecutionInterruptedError.__name__ for error in errors)


def _reason(result: dg.JobExecutionResult) -> str:
    """The message of what was raised in the asset, without Dagster's own wrapping."""
    for event in result.all_events:
        if event.is_step_failure:
            data = event.step_failure_data
            if data.user_failure_data and data.user_failure_data.description:
                return data.user_failure_data.description
            return _unwrapped(data.error)
    failures = [e.job_failure_data.error for e in result.all_events if e.is_job_failure]
    return _unwrapped(failures[0] if failures else None)


def _unwrapped(error: SerializableErrorInfo | None) -> str:
    while error and error.cause and (error.cls_name or "").startswith("Dagster"):
        error = error.cause
    return error.message.strip() if error else "it ended without an error of its own"
