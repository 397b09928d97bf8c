"""Checks the tables of a code location together."""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Collection, Sequence
from types import ModuleType

import dagster as dg

from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.environment.sizes import Size


def tables_of(module: ModuleType) -> list[Table]:
    """Returns the tables declared at a module's top level, in order: none needs registration.

    Examples:
        >>> from types import ModuleType
        >>> from lakehouse_assets import Table, column, tables_of
        >>> tables = ModuleType("shop.tables")
        >>> tables.orders = Table("shop.orders", [column("id", "int")], "shop.steps:orders")
        >>> [table.identifier for table in tables_of(tables)]
        ['shop.orders']
    """
    return [value for value in vars(module).values() if isinstance(value, Table)]


def computes_of(tables: Sequence[Table]) -> dict[str, list[str]]:
    """Returns the computes that tables choose, with those tables' identifiers."""
    chosen = dict.fromkeys(table.compute for table in tables if table.compute is not None)
    return {compute: [table.identifier for table in tables if table.compute == compute] for compute in chosen}


def declaration_problems(tables: Sequence[Table], known: Collection[dg.AssetKey] | None) -> list[str]:
    """Returns a sentence for each repeated identifier, and for each dep that is no asset.

    known: the keys of all assets; None leaves deps unchecked. Dagster takes an unknown key for an asset of another code
    location, so order and automation would be silently wrong.
    """
    problems = [
        f"table {identifier!r}: declared {count} times; each table needs its own identifier"
        for identifier, count in Counter(table.identifier for table in tables).items()
        if count > 1
    ]
    if known is None:
        return problems
    by_name = {key.to_user_string(): key for key in sorted(known)}
    for table in tables:
        for dep in table.deps:
            key = dg.AssetDep.from_coercible(dep).asset_key
            if key not in known:
                near = difflib.get_close_matches(key.to_user_string(), by_name)
                others = ", ".join(_key_text(by_name[name]) for name in near or by_name)
                problems.append(
                    f"table {table.identifier!r}: deps names {_key_text(key)}, but this code location has no such "
                    f"asset; {'similar ones' if near else 'all'}: {others}"
                )
    return problems


def dependency_problems(defs: dg.Definitions) -> list[str]:
    """Returns a sentence for each dependency whose partitions don't map.

    Dagster loads and runs such assets; only ``dagster definitions validate`` refuses them.
    """
    graph = defs.resolve_asset_graph()
    problems = []
    for node in sorted(graph.asset_nodes, key=lambda node: node.key):
        for parent in sorted(graph.get_parents(node), key=lambda parent: parent.key):
            if parent.partitions_def is None or node.is_external or parent.is_external:
                continue
            try:
                _validate(graph.get_partition_mapping(node.key, parent.key), parent.partitions_def, node.partitions_def)
            except Exception as error:  # Dagster's mappings raise several kinds
                problems.append(
                    f"asset {node.key.to_user_string()!r}: its partitions ({_kind(node.partitions_def)}) do not match "
                    f"those of its dep {_key_text(parent.key)} ({_kind(parent.partitions_def)}): "
                    f"{str(error).rstrip('.')}. {_fitting(parent.key, parent.partitions_def, node.partitions_def)}"
                )
    return problems


def _validate(
    mapping: dg.PartitionMapping, upstream: dg.PartitionsDefinition, downstream: dg.PartitionsDefinition | None
) -> None:
    """Raises what Dagster raises. Checks each dimension too: Dagster at first checks only the dimensions' names."""
    mapping.validate_partition_mapping(upstream, downstream)
    if downstream and isinstance(mapping, (dg.MultiToSingleDimensionPartitionMapping, dg.MultiPartitionMapping)):
        for of_one in mapping.get_dimension_dependencies(upstream, downstream):
            _validate(
                of_one.partition_mapping,
                _dimension(upstream, of_one.upstream_dimension_name),
                _dimension(downstream, of_one.downstream_dimension_name),
            )


def _dimension(partitions: dg.PartitionsDefinition, name: str | None) -> dg.PartitionsDefinition:
    """Returns a dimension's partitions; other partitions as they are."""
    if name and isinstance(partitions, dg.MultiPartitionsDefinition):
        return partitions.get_partitions_def_for_dimension(name)
    return partitions


def _fitting(parent: dg.AssetKey, *both: dg.PartitionsDefinition | None) -> str:
    """Names the mappings that fit."""
    static = all(isinstance(partitions, dg.StaticPartitionsDefinition) for partitions in both)
    by_key = ", or dg.StaticPartitionMapping({…}) if you name them per partition" if static else ""
    return (
        f"In deps, use dg.AssetDep({_key_text(parent)}, partition_mapping=…) with dg.AllPartitionMapping() if each "
        "partition reads all partitions of the dep, dg.LastPartitionMapping() if it reads the last one, "
        f"dg.SpecificPartitionsPartitionMapping([…]) if it reads only these{by_key}"
    )


def _kind(partitions: dg.PartitionsDefinition | None) -> str:
    zone = f" in {partitions.timezone}" if isinstance(partitions, dg.TimeWindowPartitionsDefinition) else ""
    return f"{type(partitions).__name__}{zone}" if partitions else "none"


def _key_text(key: dg.AssetKey) -> str:
    """Returns a key as ``deps`` accepts it: Dagster refuses strings with slashes there."""
    return f"AssetKey({json.dumps(key.path)})"


def size_problems(tables: Sequence[Table], settings: Settings) -> list[str]:
    """Returns a sentence for each table whose compute (where its workers run) can't provide its size."""
    found = [(table.identifier, _size_problem(table, settings)) for table in tables if table.size != Size()]
    return [f"table {identifier!r}: its size: {problem}" for identifier, problem in found if problem]


def _size_problem(table: Table, settings: Settings) -> str | None:
    compute = settings.computes[table.compute or settings.compute]
    return compute.size_problem(table.size, {**table.spark_conf, **settings.spark_conf})
