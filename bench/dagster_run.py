"""One run of one asset through Dagster, in a process of its own, on the home's persistent instance, as `make run` does.
Prints one line of JSON; what it is compared with is in bare.py."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import dagster as dg
from dagster._core.definitions.assets.job.asset_job import IMPLICIT_ASSET_JOB_NAME
from dagster._core.definitions.reconstruct import ReconstructableJob, ReconstructableRepository

from lakehouse_assets.cli.home import prepare
from lakehouse_assets.cli.instance import tidy
from lakehouse_assets.cli.pipeline import failure_reason
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.run.in_flight import FIRST, LAST


def execute(job: ReconstructableJob, instance: dg.DagsterInstance, asset: str, first: str, last: str) -> dict[str, Any]:
    """Materialize the partitions from first to last in one run: its id, seconds, and why it failed, None if it did not.

    green: from RUN_START to RUN_SUCCESS by the events' own timestamps. call: of the whole call, the run's creation too.
    stage, publish: from the metadata of the materialization.
    """
    tags = {FIRST: first, LAST: last}
    started = time.perf_counter()
    result = dg.execute_job(job, instance, tags=tags, asset_selection=[dg.AssetKey(asset.split("."))])
    call = time.perf_counter() - started
    stats = instance.get_run_stats(result.run_id)
    metadata = [e.materialization.metadata for e in result.get_asset_materialization_events()]
    return {
        "run": result.run_id,
        "failure": None if result.success else failure_reason(result),
        "green": (stats.end_time or 0) - (stats.start_time or 0),
        "call": call,
        "stage": metadata[0]["stage_seconds"].value if metadata else None,
        "publish": metadata[0]["publish_seconds"].value if metadata else None,
        "materializations": len(metadata),
    }


def main(asset: str, spans: Sequence[str]) -> None:
    """spans: ``first..last`` each, run one after the other; a line of JSON for each."""
    settings = read_settings()
    prepare(settings)
    repository = ReconstructableRepository.for_module("lakehouse_assets.definitions", "defs")
    with dg.DagsterInstance.get() as instance:
        tidy(instance, settings)
        for span in spans:
            first, _, last = span.partition("..")
            job = repository.get_reconstructable_job(IMPLICIT_ASSET_JOB_NAME)
            print(json.dumps(execute(job, instance, asset, first, last or first)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
