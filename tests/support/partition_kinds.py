"""A table with a partition field of every kind, and the values that such partitions can have, for Hypothesis.
Column n has field id n; doubles are those that PyIceberg reads exactly."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

INTS, LONGS = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
IDENTITY = IdentityTransform()
# A partition field of every kind: the column's type, the transform, the partition's values.
KINDS: list[tuple[Any, Any, st.SearchStrategy[Any]]] = [
    (BooleanType(), IDENTITY, st.booleans()),
    (IntegerType(), IDENTITY, INTS),
    (LongType(), IDENTITY, LONGS),
    (FloatType(), IDENTITY, st.integers(-(2**20), 2**20).map(lambda n: n / 8) | st.just(math.inf)),
    (DoubleType(), IDENTITY, st.floats(width=32, allow_nan=False, allow_subnormal=False)),
    (DateType(), IDENTITY, INTS),
    (TimeType(), IDENTITY, st.integers(0, 86_400_000_000 - 1)),
    (TimestampType(), IDENTITY, LONGS),
    (TimestamptzType(), IDENTITY, LONGS),
    (StringType(), IDENTITY, st.text(st.characters(exclude_categories=["Cs"]))),
    (BinaryType(), IDENTITY, st.binary()),
    (FixedType(3), IDENTITY, st.binary(min_size=3, max_size=3)),
    (UUIDType(), IDENTITY, st.uuids()),
    (DecimalType(9, 2), IDENTITY, st.integers(-(10**9) + 1, 10**9 - 1).map(lambda n: Decimal(n).scaleb(-2))),
    (DecimalType(38, 10), IDENTITY, st.integers(-(10**37), 10**37).map(lambda n: Decimal((n < 0, _digits(n), -10)))),
    (DateType(), DayTransform(), INTS),
    (DateType(), MonthTransform(), INTS),
    (TimestampType(), YearTransform(), INTS),
    (TimestamptzType(), HourTransform(), INTS),
    (StringType(), BucketTransform(16), st.integers(0, 15)),
    (StringType(), TruncateTransform(4), st.text(st.characters(exclude_categories=["Cs"]), max_size=4)),
    (StringType(), VoidTransform(), st.none()),
]
SCHEMA = Schema(*(NestedField(n, f"c{n}", kind) for n, (kind, _, _) in enumerate(KINDS, start=1)))
SPEC = PartitionSpec(*(PartitionField(n, 999 + n, t, f"p{n}") for n, (_, t, _) in enumerate(KINDS, start=1)), spec_id=3)
PARTITIONS = st.tuples(*(st.none() | values for _, _, values in KINDS))


def _digits(number: int) -> tuple[int, ...]:
    return tuple(map(int, str(abs(number))))
