"""This module tells which whole numbers Iceberg's transform truncate keeps in their order.
What is left out where it does not is decided in worker/projection.py and declare/region.py."""

from __future__ import annotations

LEAST = -(2**31)
"""The least int. A column of longs may have been one of ints, and keeps partitions that were computed of these."""
WIDEST = 2**30
"""Added to the rest of a division by it, as Iceberg's truncate does with ints, a greater width overflows
(org.apache.iceberg.util.TruncateUtil)."""


def truncates_in_order(width: int, number: int) -> bool:
    """Whether the partition of a number, and of all greater ones, is what PyIceberg computes too, which knows no
    overflow. Else it may be any.

    width: of the truncate. number: of a column of ints or longs.
    """
    return width <= WIDEST and LEAST + width <= number
