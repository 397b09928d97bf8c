"""Write modes: what is taken for one, and that a mode's options reach the code version."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from dagster import DailyPartitionsDefinition, MultiPartitionsDefinition, StaticPartitionsDefinition

from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.modes import Append, FullRefresh, Merge, Overwrite
from lakehouse_assets.declare.options import Arrivals
from lakehouse_assets.errors import DeclarationError, UnknownPartitions
from tests.support.tables import numbers

NESTED = [*numbers().columns, column("at", "map<string, long>")]
KEYED = [*numbers().columns, column("id", "uuid")]


@pytest.mark.parametrize("value", [None, "overwrite", Overwrite], ids=["nothing", "text", "class"])
def test_only_a_write_mode_is_taken_for_one(value: object) -> None:
    with pytest.raises(DeclarationError, match=r"'demo.numbers': write_mode is .*, it must be of the type WriteMode"):
        numbers(write_mode=value)


def test_a_mode_and_its_options_are_part_of_the_code_version() -> None:
    @dataclass(frozen=True)
    class Lenient(Overwrite):
        """A mode of somebody's own."""

        option: int = 1

    assert repr(Overwrite()) == "Overwrite()", "receipts that are staged already stay valid"
    modes = (Overwrite(), Lenient(), Lenient(2))
    assert len({numbers(write_mode=mode).code_version for mode in modes}) == len(modes)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"write_mode": FullRefresh()}, "can't have Dagster partitions"),
        ({"write_mode": Append(), "unique": ["n"]}, "Append can't keep columns unique"),
        ({"write_mode": Append(dedup_on="n")}, "write_mode.dedup_on is 'n', it must be a list"),
        ({"write_mode": Append(dedup_on=["x"])}, "names the column 'x'"),
        ({"write_mode": Append(dedup_on=["n"], within=7)}, "write_mode.within is 7, it must be of the type timedelta"),  # type: ignore[arg-type]
        ({"write_mode": Append(), "arrivals": Arrivals("{partition}.csv")}, "a message may come twice"),
        ({"write_mode": Merge([])}, "has no keys"),
        ({"write_mode": Merge(["n"], order_by="at desc")}, "order_by='at desc'; it must name one column"),
        ({"write_mode": Merge(["n"], order_by="max(at)")}, "order_by='max(at)'; it must name one column"),
        (
            {"write_mode": Merge(["n"], delete_when="max(op) = 'D'")},
            "delete_when (max(op) = 'D') of its Merge can't be",
        ),
        ({"write_mode": Merge(["x"])}, "names the column 'x'"),
        ({"write_mode": Merge(["n"], by_partition=True)}, "but lacks day"),
        ({"write_mode": Merge(["day"], by_partition=True), "partitions": None}, "the table has none"),
        ({"write_mode": Merge(["n", "day", "n"])}, "Merge(keys=…) names n twice"),
        ({"write_mode": Append(dedup_on=["n", "n"])}, "Append(dedup_on=…) names n twice"),
        ({"write_mode": Append(within=timedelta(days=2))}, "Append(within=…) has no effect without dedup_on"),
        ({"write_mode": Merge(["n"], at_most_changed=20)}, "a share from 0 to 1"),
        ({"write_mode": Merge(["n"], rewrites="none")}, "expected one of copy-on-write, merge-on-read"),  # type: ignore[arg-type]
        ({"write_mode": Merge(["n"]), "publish_others": True}, "lands in one commit"),
        ({"write_mode": Merge(["at"]), "columns": NESTED}, "has a nested type"),
        ({"write_mode": Merge(["id"]), "columns": KEYED}, "'id', a uuid: Iceberg may skip files"),
        ({"write_mode": Append(dedup_on=["id"]), "columns": KEYED}, "'id', a uuid"),
        (
            {"write_mode": Merge(["n"], delete_when="op = 'D")},
            "delete_when (op = 'D) of its Merge can't be evaluated: ",
        ),
        ({"write_mode": Merge(["n"], order_by=["n"])}, "write_mode.order_by is ['n'], it must be of the type str"),  # type: ignore[arg-type]
        ({"write_mode": Merge(["n"]), "properties": {"write.merge.mode": "merge-on-read"}}, "Merge(rewrites=…)"),
        ({"write_mode": Merge(["n"]), "allow_empty": True}, "allow_empty has no effect with Merge"),
        ({"write_mode": Append(), "allow_empty": True}, "allow_empty has no effect with Append"),
        ({"write_mode": Merge(["n"]), "partitions_per_worker": 2}, "Merge(by_partition=True)"),
        ({"write_mode": Append(dedup_on=["n"]), "partitions_per_worker": 2}, "no effect with this Append"),
        ({"write_mode": Append(dedup_on=["n"]), "publish_others": True}, "publish_others has no effect"),
    ],
)
def test_what_a_mode_cant_do_is_refused_when_the_location_loads(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(DeclarationError, match=re.escape(problem)):
        numbers(**{"unique": ()} | options)


def test_partitions_of_changes_need_no_column_in_the_table() -> None:
    days = DailyPartitionsDefinition("2024-01-01")
    kinds = StaticPartitionsDefinition(["a", "b"])
    both = MultiPartitionsDefinition({"came": days, "kind": kinds})
    for partitions, keys, dimensions in (
        (days, ["2024-01-02"], {}),
        (kinds, ["b"], {"partition": ("b",)}),
        (both, ["2024-01-02|b"], {"came": ("2024-01-02",), "kind": ("b",)}),
    ):
        of = numbers(write_mode=Merge(["n"]), unique=(), partitions=partitions, partitioned_by=["bucket(4, n)"])
        assert of.alignment.dimensions(keys) == dimensions
        assert (of.alignment.window(keys) is None) == (partitions is kinds)
        with pytest.raises(UnknownPartitions):
            of.alignment.region(["nothing"])
