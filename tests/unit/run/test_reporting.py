"""Reporting all partitions at once stores what Dagster's own calls store, one for each partition, with far fewer reads.
Real runs on SQLite; a whole run of many partitions is in tests/integration/test_many_partitions.py."""

# No `from __future__ import annotations` here: Dagster compares the context's annotation itself.

from collections.abc import Callable, Iterable
from typing import Any

import dagster as dg
import pytest

from lakehouse_assets.run import report as reporting

KEY = dg.AssetKey("reported")
DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-02-01")
LETTERS = dg.StaticPartitionsDefinition(list("abcdefghijkl"))
NAMES = dg.DynamicPartitionsDefinition(name="names")
KINDS = {
    "daily": DAYS,
    "static": LETTERS,
    "dynamic": NAMES,
    "multi": dg.MultiPartitionsDefinition({"day": DAYS, "letter": LETTERS}),
}
Report = Callable[[dg.AssetExecutionContext], Iterable[dg.MaterializeResult] | None]


@pytest.fixture(params=list(KINDS))
def partitions(request: pytest.FixtureRequest, instance: dg.DagsterInstance) -> dg.PartitionsDefinition:
    instance.add_dynamic_partitions("names", [f"name-{n:02}" for n in range(20)])
    return KINDS[request.param]


def metadata(key: str) -> dict[str, Any]:
    """As a table's materialization has it: plain values and Dagster's own, in this order."""
    return {"rows": len(key), "key": key, "preview": dg.MetadataValue.md(f"| {key} |"), "bytes": 1}


def run(
    instance: dg.DagsterInstance, partitions: dg.PartitionsDefinition, count: int, report: Report
) -> dict[str, Any]:
    """Events of a run of the first so many keys: by partition, the metadata in its order and the tags' names."""

    @dg.asset(key=KEY, partitions_def=partitions, backfill_policy=dg.BackfillPolicy.single_run(), output_required=False)
    def reported(context: dg.AssetExecutionContext):
        yield from report(context) or ()

    keys = partitions.get_partition_keys(dynamic_partitions_store=instance)
    if isinstance(partitions, dg.MultiPartitionsDefinition):
        keys = [key for key in keys if key.endswith("|a")]  # a range is a rectangle
    span = {"dagster/asset_partition_range_start": keys[0], "dagster/asset_partition_range_end": keys[count - 1]}
    result = dg.materialize([reported], instance=instance, tags=span)
    records = instance.fetch_materializations(KEY, limit=1000).records
    found = [r.asset_materialization for r in records if r.run_id == result.run_id]
    assert {m.partition for m in found} == {str(key) for key in keys[:count]}
    shown = {m.partition: (list(m.metadata.items()), sorted(m.tags or ())) for m in found}  # versions are the run's own
    assert len(shown) == len(found), "each partition once"
    return shown


def at_once(context: dg.AssetExecutionContext):
    reporting.add_metadata(context, KEY, {key: metadata(key) for key in context.partition_keys})
    yield dg.MaterializeResult(asset_key=KEY)


def one_by_one(context: dg.AssetExecutionContext):
    for key in context.partition_keys:
        context.add_asset_metadata(metadata(key), asset_key=KEY, partition_key=key)
    yield dg.MaterializeResult(asset_key=KEY)


def test_a_result_reports_of_each_partition_what_dagsters_own_calls_report(instance, partitions) -> None:
    assert run(instance, partitions, 4, at_once) == run(instance, partitions, 4, one_by_one)


def test_metadata_that_was_added_before_is_kept(instance) -> None:
    def report(context: dg.AssetExecutionContext):
        context.add_asset_metadata({"before": 1}, partition_key="a")
        context.add_asset_metadata({"of all": 2})
        reporting.add_metadata(context, KEY, {key: metadata(key) for key in context.partition_keys})
        yield dg.MaterializeResult(asset_key=KEY)

    names = {key: [name for name, _ in shown] for key, (shown, _) in run(instance, LETTERS, 2, report).items()}
    assert names == {"a": ["of all", "before", *metadata("a")], "b": ["of all", *metadata("b")]}


def test_the_range_s_keys_are_looked_up_as_often_however_many_they_are(instance, partitions, monkeypatch) -> None:
    lookups: list[object] = []
    for kind in {type(definition) for definition in KINDS.values()}:
        method = kind.get_partition_keys_in_range

        def counted(self: Any, *arguments: Any, _method: Any = method, **named: Any) -> Any:
            lookups.append(self)
            return _method(self, *arguments, **named)

        monkeypatch.setattr(kind, "get_partition_keys_in_range", counted)

    def count(keys: int) -> int:
        lookups.clear()
        run(instance, partitions, keys, at_once)
        return len(lookups)

    assert count(2) == count(10) > 0
