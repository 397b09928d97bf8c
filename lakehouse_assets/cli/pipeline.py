"""Runs a code location's assets in this process; the UI shows these as normal runs, which it can re-execute.

The only file of `lakehouse run` that uses Dagster's private API.
"""

from __future__ import annotations

import traceback
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
from dagster._core.definitions.assets.job.asset_job import IMPLICIT_ASSET_JOB_NAME
from dagster._core.execution.api import execute_run
from dagster._core.origin import DEFAULT_DAGSTER_ENTRY_POINT
from dagster._core.remote_origin import RemoteRepositoryOrigin
from dagster._core.workspace.load_target import PyProjectFileTarget
from dagster._grpc.server import LoadedRepositories

from lakehouse_assets.cli.project import FILE
from lakehouse_assets.drive.liveness import hold_lock
from lakehouse_assets.environment.env_reader import SettingsError
from lakehouse_assets.errors import LakehouseError
from lakehouse_assets.run.in_flight import FIRST, LAST
from lakehouse_assets.run.jobs import TABLE_NAME


@dataclass(frozen=True)
class Selection:
    """The assets of one run (several if they only run together) and their partitions."""

    assets: tuple[dg.AssetKey, ...]
    partitions: tuple[str, ...] | None
    """In order; None without partitions."""

    @property
    def name(self) -> str:
        """The assets' keys with dots, joined by commas."""
        return ", ".join(".".join(key.path) for key in self.assets)

    @property
    def count(self) -> int | None:
        """The number of partitions, or None."""
        return None if self.partitions is None else len(self.partitions)

    def within(self, span: str) -> Selection:
        """Returns the part of the selection in a span; all of it if it has no partitions.

        span: a key or ``first...last``, as for `dg launch`. Raises LakehouseError for an unknown key.
        """
        if self.partitions is None:
            return self
        first, is_range, last = span.partition("...")
        for key in (first, last if is_range else first):
            if key not in self.partitions:
                known = f"{self.partitions[0]} to {self.partitions[-1]}"
                raise LakehouseError(f"{self.name} has no partition {key!r}; it has {len(self.partitions)}, {known}")
        begin, end = self.partitions.index(first), self.partitions.index(last if is_range else first)
        if end < begin:
            raise LakehouseError(
                f"{self.name}: the range begins with {first}, after its end {last}; name the earlier partition first"
            )
        return replace(self, partitions=self.partitions[begin : end + 1])


class Pipeline:
    """The project's code location."""

    def __init__(self) -> None:
        locations = PyProjectFileTarget(FILE).create_origins()
        if len(locations) != 1:
            raise LakehouseError(f"{FILE} names {len(locations)} code locations; this command works with exactly one")
        (self._location,) = locations
        target = self._location.loadable_target_origin
        try:  # as the UI's code server loads it
            loaded = LoadedRepositories(target, None, DEFAULT_DAGSTER_ENTRY_POINT, None)
        except Exception as error:  # whatever a project's modules raise
            raise LakehouseError(_cause(error, str(target.module_name or target.autoload_defs_module_name))) from error
        ((self._name, self._repository),) = loaded.reconstructables_by_name.items()
        self._graph: AssetGraph = loaded.definitions_by_name[self._name].asset_graph

    @property
    def graph(self) -> AssetGraph:
        """Assets and dependencies."""
        return self._graph

    def selected(self, text: str) -> set[dg.AssetKey]:
        """Returns what a text selects in Dagster's syntax, such as ``+shop/orders``; without sources.

        Raises LakehouseError for another text, unknown assets, or if it selects nothing.
        """
        try:
            found = dg.AssetSelection.from_string(text).resolve(self._graph)
        except dg.DagsterError as error:  # of several kinds
            raise LakehouseError(f"--select {text!r}: {error}") from None
        if keys := {*found} & self._graph.materializable_asset_keys:
            return keys
        raise LakehouseError(f"--select {text!r} selects nothing that can be materialized")

    def tables(self, keys: Collection[dg.AssetKey]) -> list[str]:
        """Returns the identifiers of those of these assets that are tables, sorted."""
        return sorted(".".join(key.path) for key in keys if TABLE_NAME in self._graph.get(key).metadata)

    def selections(self, keys: Collection[dg.AssetKey], instance: dg.DagsterInstance) -> list[Selection]:
        """Returns assets' selections in topological order, without those that have no partition yet."""
        seen: set[dg.AssetKey] = set()
        selections = []
        for key in self._graph.toposorted_asset_keys:
            if key in seen or key not in keys:
                continue
            together = self._graph.get_execution_set_asset_and_check_keys(key)
            # The set also has the keys of checks.
            assets = sorted(k for k in together if isinstance(k, dg.AssetKey))
            seen.update(assets)
            definition = self._graph.get(key).partitions_def
            partitions = tuple(definition.get_partition_keys(dynamic_partitions_store=instance)) if definition else None
            # None stands for an asset without partitions.
            if partitions != ():
                selections.append(Selection(tuple(assets), partitions))
        return selections

    def upstream(self, selections: Sequence[Selection]) -> dict[Selection, set[Selection]]:
        """Returns each of these selections, in their order, with those of them that it depends on directly."""
        by_key = {key: one for one in selections for key in one.assets}
        return {
            one: {by_key[parent] for key in one.assets for parent in self._graph.get(key).parent_keys & by_key.keys()}
            - {one}
            for one in selections
        }

    def only_domain(self) -> str:
        """Returns the name of the only domain. Raises LakehouseError if there are several, naming them."""
        domains = sorted({key.path[0] for key in self._graph.materializable_asset_keys})
        if len(domains) != 1:
            raise LakehouseError(
                f"choose a domain with --domain, one of {', '.join(domains)}; arguments choose some of its tables"
            )
        return domains[0]

    def other_domains_upstream(self, domain: str) -> list[str]:
        """Returns the names of other domains' assets that the domain's assets depend on directly."""
        keys = self.keys_of(domain)
        upstream = {parent for key in keys for parent in self._graph.get(key).parent_keys}
        return sorted(".".join(key.path) for key in upstream & self._graph.materializable_asset_keys - keys)

    def execute(self, instance: dg.DagsterInstance, selection: Selection) -> dg.JobExecutionResult:
        """Materializes a selection in one run. A failed run raises nothing."""
        tags = {}
        if selection.partitions:
            tags[FIRST] = selection.partitions[0]
            tags[LAST] = selection.partitions[-1]
        return self.execute_job(instance, IMPLICIT_ASSET_JOB_NAME, {}, tags, frozenset(selection.assets))

    def execute_job(
        self,
        instance: dg.DagsterInstance,
        name: str,
        config: Mapping[str, Any],
        tags: Mapping[str, str] | None = None,
        assets: frozenset[dg.AssetKey] | None = None,
    ) -> dg.JobExecutionResult:
        """Runs a job. A failed run raises nothing."""
        job = self._repository.get_reconstructable_job(name)
        # dg.execute_job does the same without the location's origin, but then the UI can't re-execute the run.
        origin = RemoteRepositoryOrigin(self._location, self._name)
        run_id = str(uuid4())
        # First, so that reap() finds the run if this process dies before the run starts.
        hold_lock(instance, run_id)
        run = instance.create_run_for_job(
            job_def=job.get_definition(),
            run_id=run_id,
            tags=tags,
            asset_selection=assets,
            run_config=config,
            job_code_origin=job.get_python_origin(),
            remote_job_origin=origin.get_job_origin(name),
        )
        return execute_run(job, run, instance, raise_on_error=False)

    def keys_of(self, domain: str) -> set[dg.AssetKey]:
        """Returns the keys of a domain's assets. Raises LakehouseError for an unknown domain, naming others."""
        materializable = self._graph.materializable_asset_keys
        known = {key.path[0] for key in materializable}
        if domain not in known:
            raise LakehouseError(f"there is no domain {domain!r}; the domains are {', '.join(sorted(known))}")
        return {key for key in materializable if key.path[0] == domain}


def _cause(error: BaseException, module: str) -> str:
    """Says why a module can't be loaded: an error for people, else the root cause, with the project's last line."""
    inner: BaseException | None = error
    while inner:
        error = inner
        if isinstance(error, LakehouseError | SettingsError):
            return str(error)
        # As Python shows chains of errors.
        inner = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    here = Path.cwd()
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "site-packages" not in frame.filename]
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(here)]
    place = f"{Path(own[-1].filename).relative_to(here)}:{own[-1].lineno}: " if own else ""
    return f"{module} can't be loaded: {place}{type(error).__name__}: {error}"


def was_interrupted(result: dg.JobExecutionResult) -> bool:
    """Whether a signal to this process ended the run: Dagster reports a failed step instead."""
    errors = [event.step_failure_data.error for event in result.all_events if event.is_step_failure]
    return any(error and error.cls_name == dg.DagsterExecutionInterruptedError.__name__ for error in errors)


def failure_reason(result: dg.JobExecutionResult) -> str:
    """Returns the message of a failed run's error, without Dagster's wrappers."""
    steps = [event.step_failure_data for event in result.all_events if event.is_step_failure]
    if steps and steps[0].user_failure_data and steps[0].user_failure_data.description:
        return steps[0].user_failure_data.description
    errors = [s.error for s in steps] or [e.job_failure_data.error for e in result.all_events if e.is_job_failure]
    error = next(iter(errors), None)
    while error and error.cause and (error.cls_name or "").startswith("Dagster"):
        error = error.cause
    return error.message.strip() if error else "the run ended without an error message"


def shown_charts(result: dg.JobExecutionResult) -> list[str]:
    """Returns the paths of the files that materializations name as ``chart``."""
    events = [event.step_materialization_data for event in result.all_events if event.is_step_materialization]
    found = (event.materialization.metadata.get("chart") for event in events)
    return [chart.path for chart in found if isinstance(chart, dg.PathMetadataValue) and chart.path]
