"""Bounds of a merge's keys are left out where Iceberg would skip files that hold such keys.
That no others need be, by Iceberg's own planning: integration/test_key_bounds.py."""

from __future__ import annotations

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import BucketTransform, IdentityTransform, Transform, TruncateTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestamptzType

from lakehouse_assets.wire.work import Bound
from lakehouse_assets.worker.merge import is_projected

SCHEMA = Schema(
    NestedField(1, "small", IntegerType()),
    NestedField(2, "large", LongType()),
    NestedField(3, "text", StringType()),
    NestedField(4, "at", TimestamptzType()),
)
LEAST = -(2**31)


def table(*specs: tuple[int, Transform]) -> TableMetadata:  # type: ignore[type-arg]
    """A table that was partitioned by each of these, one after the other: by the column's id, and how."""
    given = [
        PartitionSpec(PartitionField(source_id=column, field_id=1000 + n, transform=how, name=f"p{n}"), spec_id=n + 1)
        for n, (column, how) in enumerate(specs)
    ]
    metadata = new_table_metadata(SCHEMA, PartitionSpec(), UNSORTED_SORT_ORDER, "file:///t")
    return metadata.model_copy(update={"partition_specs": [PartitionSpec(), *given], "default_spec_id": len(given)})


TENS = TruncateTransform(10)


@pytest.mark.parametrize("column", ["small", "large"])
@pytest.mark.parametrize("least", [LEAST, LEAST + 9, LEAST + 10, 0])
def test_numbers_whose_partitions_overflow_have_no_bounds(column: str, least: int) -> None:
    metadata = table((1, TENS), (2, TENS))
    for bound in (Bound(column, (), str(least), "7"), Bound(column, ("5", str(least), "7"))):
        assert is_projected(bound, metadata) is (least >= LEAST + 10)


def test_an_earlier_spec_and_another_width_count() -> None:
    bound = Bound("small", (), str(LEAST + 50), "7")
    assert is_projected(bound, table((1, TENS), (1, BucketTransform(4))))
    assert not is_projected(bound, table((1, TENS), (1, TruncateTransform(100)), (1, BucketTransform(4))))


def test_a_width_that_overflows_at_any_number_leaves_no_bounds() -> None:
    bound = Bound("small", ("5",))
    assert is_projected(bound, table((1, TruncateTransform(2**30))))
    assert not is_projected(bound, table((1, TruncateTransform(2**30 + 1))))


def test_the_least_number_has_bounds_where_nothing_truncates_it() -> None:
    bound = Bound("small", (), str(LEAST), "7")
    assert is_projected(bound, table((1, BucketTransform(4)), (1, IdentityTransform()), (2, TENS)))
    assert is_projected(Bound("text", (), "", "a"), table((3, TENS)))


@pytest.mark.parametrize(
    ("low", "high", "kept"),
    [
        (-62_135_596_800_000_000, 253_402_300_799_999_999, True),
        (-62_135_596_800_000_001, 0, False),
        (0, 253_402_300_800_000_000, False),
    ],
)
def test_times_have_bounds_in_the_years_1_to_9999(low: int, high: int, *, kept: bool) -> None:
    assert is_projected(Bound("at", (), str(low), str(high)), table()) is kept
    assert is_projected(Bound("at", (str(low), str(high))), table()) is kept
