"""An extension as somebody else would write one: it tells each worker a greeting, and records who was greeted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import dagster as dg

from lakehouse_assets.commit.commit_part import CommitPart, SummaryEntries
from lakehouse_assets.run.extension import Extension, RunHook, Shown
from lakehouse_assets.wire.work import HookWork
from lakehouse_assets.worker.hook import StageHook


def step(spark: Any, window: Any) -> Any:
    return spark.createDataFrame([(window.offers["greeting"](),)], "greeting string")


class Greeting(RunHook):
    name = "greeting"

    def plan(self, run: Any, now: Any) -> Any:
        return f"hello {run.table.identifier}"

    def work(self, run: Any) -> HookWork:
        return HookWork("tests.support.toy_extension:Greeted", run.plan.part(self.name, str))

    def parts(self, run: Any, staged: Any) -> Iterable[CommitPart]:
        return [SummaryEntries({"toy.greeting": run.plan.part(self.name, str)})]

    def shown(self, run: Any, forks: Sequence[Any]) -> Shown:
        return Shown({"greeted": " and ".join(fork.receipt.extensions[self.name]["greeted"] for fork in forks)})


class Greeted(StageHook):
    def offers(self) -> Mapping[str, Callable[..., Any]]:
        return {"greeting": lambda: self.told}

    def done(self) -> Mapping[str, Any]:
        return {"greeted": f"chunk {self.chunk.assignment.chunk}"}


class Toy(Extension):
    def hooks(self, run: Any) -> Iterable[RunHook]:
        return [Greeting()]

    def kept_snapshots(self, means: Any, table: str, now: Any) -> Collection[int]:
        return [one.snapshot_id for one in now.snapshots if one.summary["toy.greeting"]]

    def definitions(self, tables: Sequence[Any], settings: Any) -> dg.Definitions:
        @dg.sensor(name="toy", target=[table.key for table in tables])
        def toy() -> dg.SkipReason:
            return dg.SkipReason("nobody to greet")

        return dg.Definitions(sensors=[toy])
