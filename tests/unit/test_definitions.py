"""The whole code location as text beside this file, so that a change of what the UI shows is reviewed like code.
`make snapshot` rewrites the text."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from tests.support.whole_location import build_defs

SNAPSHOT = Path(__file__).with_name("location.txt")


def test_the_code_location_is_what_was_reviewed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("LAKEHOUSE_", "PYICEBERG_")):
            monkeypatch.delenv(name)
    found = "\n".join(location_lines(build_defs())) + "\n"
    if os.environ.get("UPDATE_SNAPSHOT"):
        SNAPSHOT.write_text(found)
    reviewed = SNAPSHOT.read_text()
    if diff := [*difflib.unified_diff(reviewed.splitlines(), found.splitlines(), "reviewed", "found", lineterm="")]:
        pytest.fail("\n".join([*diff, "", "If the change is intended: make snapshot"]), pytrace=False)


def location_lines(defs: dg.Definitions) -> Iterator[str]:
    graph, repository = defs.resolve_asset_graph(), defs.get_repository_def()
    yield f"executor: {defs.executor.name if defs.executor else None}"
    yield f"resources: {', '.join(sorted(defs.resources or {}))}"
    for key in sorted(graph.get_all_asset_keys()):
        yield from _asset(graph, key)
    for job in sorted(repository.get_all_jobs(), key=lambda job: job.name):
        if job.name != "__ASSET_JOB":
            yield f"\njob {job.name}"
            yield f"  partitions: {_partitions(job.partitions_def)}"
            yield f"  assets: {_keys(job.asset_layer.selected_asset_keys)}"
    for schedule in sorted(repository.schedule_defs, key=lambda schedule: schedule.name):
        yield f"\nschedule {schedule.name}: {schedule.default_status.value}"
        yield f"  runs: job {schedule.job_name} at {schedule.cron_schedule} {schedule.execution_timezone}"
        yield f"  {schedule.description}"
    for sensor in sorted(repository.sensor_defs, key=lambda sensor: sensor.name):
        yield f"\nsensor {sensor.name}: {sensor.default_status.value}"
        yield f"  every {sensor.minimum_interval_seconds} s: {sensor.sensor_type.value}"
        yield f"  assets: {_keys(sensor.asset_selection.resolve(graph)) if sensor.asset_selection else None}"
        yield f"  {sensor.description}"


def _asset(graph: dg.AssetGraph, key: dg.AssetKey) -> Iterator[str]:
    spec, node = graph.get(key).to_asset_spec(), graph.get(key)
    yield f"\nasset {key.to_user_string()}"
    yield f"  group {spec.group_name}, kinds {', '.join(sorted(spec.kinds))}, owners {', '.join(spec.owners)}"
    yield f"  partitions: {_partitions(spec.partitions_def)}"
    if node.backfill_policy:
        yield f"  backfill: {node.backfill_policy.policy_type.value}"
    for dep in sorted(spec.deps, key=lambda dep: dep.asset_key):
        mapping = f" by {dep.partition_mapping}" if dep.partition_mapping else ""
        yield f"  dep: {dep.asset_key.to_user_string()}{mapping}"
    for check in sorted(graph.get_check_keys_for_assets({key})):
        yield f"  check: {check.name}{', blocking' if graph.get(check).blocking else ''}"
    if spec.automation_condition:
        yield from _condition(spec.automation_condition)
    yield f"  code version: {'yes' if spec.code_version else 'none'}"
    yield f"  metadata: {', '.join(sorted(spec.metadata)) or 'none'}"


def _condition(condition: dg.AutomationCondition, depth: int = 0) -> Iterator[str]:
    """The condition and its operands, down to those that have a label."""
    label = condition.get_label()
    yield f"  {'automation: ' if not depth else '    ' * depth}{label or condition.name}"
    if not label or not depth:
        for operand in condition.children:
            yield from _condition(operand, depth + 1)


def _partitions(partitions: dg.PartitionsDefinition | None) -> str:
    if partitions is None:
        return "none"
    keys = partitions.get_partition_keys()
    return f"{type(partitions).__name__}, {len(keys)} keys from {keys[0]} to {keys[-1]}"


def _keys(keys: object) -> str:
    return ", ".join(sorted(key.to_user_string() for key in keys))
