"""One run of one of executors.py's jobs, in a process of its own. Prints a line of JSON."""

from __future__ import annotations

import json
import sys

import dagster as dg
from dagster._core.definitions.reconstruct import ReconstructableRepository

from lakehouse_assets.cli.home import prepare
from lakehouse_assets.cli.instance import tidy
from lakehouse_assets.cli.pipeline import failure_reason
from lakehouse_assets.definitions import defs as location
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.run.executor import patient_executor

TABLES = [["nyc", name] for name in ("planes", "airports", "airlines")]
JOBS = {
    "in_turn": "in turn, in the run's process (the default)",
    "forkserver": "each in a process, forked from one that has imported our modules",
    "spawn": "each in a process that imports everything itself (Dagster's default)",
}
IMPORTED = ["lakehouse_assets.definitions", "lakehouse_assets.run.table_run"]
EXECUTORS = {
    "in_turn": patient_executor,
    "forkserver": dg.multiprocess_executor.configured(
        {"max_concurrent": 2, "start_method": {"forkserver": {"preload_modules": IMPORTED}}}, name="forkserver"
    ),
    "spawn": dg.multiprocess_executor.configured({"max_concurrent": 2, "start_method": {"spawn": {}}}, name="spawn"),
}
defs = dg.Definitions.merge(
    location,
    dg.Definitions(
        jobs=[
            dg.define_asset_job(name, dg.AssetSelection.assets(*TABLES), executor_def=executor)
            for name, executor in EXECUTORS.items()
        ]
    ),
)


def main(name: str) -> None:
    settings = read_settings()
    prepare(settings)
    job = ReconstructableRepository.for_module(__spec__.name, "defs").get_reconstructable_job(name)
    with dg.DagsterInstance.get() as instance:
        tidy(instance, settings)
        result = dg.execute_job(job, instance)
        if not result.success:
            sys.exit(failure_reason(result))
        stats = instance.get_run_stats(result.run_id)
    print(json.dumps({"seconds": (stats.end_time or 0) - (stats.start_time or 0)}))


if __name__ == "__main__":
    main(sys.argv[1])
