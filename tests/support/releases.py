"""A small domain that is released: tables whose assets write by PyIceberg, so that no test of releases needs a JVM.
What a release's tables hold is one number, the generation: a reader that finds two has read half of two releases."""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.types import LongType, NestedField

from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.extensions.releases import publish_release
from lakehouse_assets.extensions.releases.pointer import Pointer, Released, release
from lakehouse_assets.extensions.releases.release_asset import Release
from lakehouse_assets.run.resource import Lakehouse

SCHEMA = Schema(NestedField(1, "n", LongType(), required=False))
STEPS = ("open_pointer", "pin_members", "tag_members", "verify_members", "move", "tidy")
"""What a release does, in order, by the names of the functions."""


def declared(name: str, *deps: Table) -> Table:
    return Table(f"demo.{name}", [column("n", "long")], "tests.support.steps:whole", deps=[one.key for one in deps])


RAW = declared("raw")
BETWEEN = declared("between", RAW)
SUMS = declared("sums", BETWEEN)
RELEASE = Release("demo", [RAW, SUMS], keep=3)
"""``between`` is no member, but a member is made from it."""
TABLES = (RAW, BETWEEN, SUMS)


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64())})


def written(table: Table) -> dg.AssetsDefinition:
    """An asset that replaces the table's rows by the run's tag ``generation``, as often, and reports as runs do."""

    @dg.asset(key=table.key, deps=list(table.deps))
    def asset(context: dg.AssetExecutionContext, lakehouse: dg.ResourceParam[Lakehouse]) -> dg.MaterializeResult[None]:
        generation = int(context.run.tags["generation"])
        found = opened(lakehouse.catalog(), table.identifier)
        summary = {"lakehouse.run-id": context.run.run_id, "lakehouse.token": context.run.run_id}
        found.overwrite(rows(*[generation] * generation), snapshot_properties=summary)
        if context.run.tags.get("dies") == table.identifier:
            raise RuntimeError("killed between the commit and the report")
        snapshot = found.current_snapshot().snapshot_id
        return dg.MaterializeResult(metadata={"snapshot_id": str(snapshot)}, data_version=dg.DataVersion(str(snapshot)))

    return asset


def opened(catalog: Catalog, identifier: str) -> IcebergTable:
    catalog.create_namespace_if_not_exists(identifier.partition(".")[0])
    return catalog.create_table_if_not_exists(identifier, SCHEMA)


@dataclass
class ReleasedLake:
    """The domain on one catalog and one Dagster instance."""

    settings: Settings
    instance: dg.DagsterInstance
    release: Release = RELEASE
    tables: Sequence[Table] = TABLES
    lakehouse: Lakehouse = field(init=False)

    def __post_init__(self) -> None:
        self.lakehouse = Lakehouse(self.settings)

    @property
    def catalog(self) -> Catalog:
        return self.lakehouse.catalog()

    def run(self, *keys: dg.AssetKey, **tags: str) -> dg.ExecuteInProcessResult:
        assets = [*map(written, self.tables), self.release.asset]
        job = dg.Definitions(assets, resources={"lakehouse": self.lakehouse}).resolve_implicit_global_asset_job_def()
        chosen = job.get_subset(asset_selection={*keys})
        return chosen.execute_in_process(instance=self.instance, tags=tags, raise_on_error=False)

    def write(self, generation: int, *tables: Table) -> None:
        """All tables, or some of them, one run each."""
        for table in tables or self.tables:
            assert self.run(table.key, generation=str(generation)).success

    def publish(self, **tags: str) -> dg.ExecuteInProcessResult:
        """One release; tags have ``lakehouse/`` before their names."""
        return self.run(self.release.asset.key, **{f"lakehouse/{name}": value for name, value in tags.items()})

    def published(self, generation: int) -> int:
        """Writes all tables and releases them; returns the release's number."""
        self.write(generation)
        return told(self.publish())["release"]

    def table(self, table: Table) -> IcebergTable:
        return self.catalog.load_table(table.identifier)

    def tags(self, table: Table) -> dict[str, int]:
        refs = self.table(table).metadata.refs
        return {name: ref.snapshot_id for name, ref in refs.items() if name.startswith("lakehouse.release.")}

    def read(self, **asked: Any) -> Released:
        return release("demo", catalog=self.catalog, **asked)

    def numbers(self) -> list[int]:
        """The releases that are kept."""
        return [one.number for one in self.read().pointer.releases]


def generations(released: Released) -> set[int]:
    """The generations of a release's tables, of which each reads to its end."""
    found = (released.scan(table).to_arrow()["n"].to_pylist() for table in released.members)
    return {n for numbers in found for n in (*numbers, len(numbers))}


def told(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    """The metadata of the materialization."""
    (event,) = result.get_asset_materialization_events()
    return {name: value.value for name, value in event.materialization.metadata.items()}


def before(monkeypatch: pytest.MonkeyPatch, step: str, act: Callable[[], object], nth: int = 1) -> list[str]:
    """Acts right before a step of a release, when it is taken for the nth time; returns what fills with each taking."""
    owner: Any = Pointer if step == "move" else publish_release
    function, taken = getattr(owner, step), list[str]()

    def acting(*arguments: Any, **options: Any) -> Any:
        taken.append(step)
        if len(taken) == nth:
            act()
        return function(*arguments, **options)

    monkeypatch.setattr(owner, step, acting)
    return taken


def smaller(**options: Any) -> Release:
    return replace(RELEASE, **options)


def tag_names(runs: Iterable[str]) -> set[str]:
    return {f"lakehouse.release.demo.{run}" for run in runs}
