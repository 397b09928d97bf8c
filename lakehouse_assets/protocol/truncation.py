"""This module tells which whole numbers Iceberg's transform truncate keeps in their order.

What is left out where it does not is decided in worker/merge.py and declare/region.py.
"""

from __future__ import annotations

LEAST = -(2**31)
"""The least int. A column of longs may have been one of ints, and keeps partitions that were computed of these."""
WIDEST = 2**30
"""The greatest width that Iceberg's truncate of ints can add to the rest of a division by it without an overflow
(org.apache.iceberg.util.TruncateUtil)."""


def truncates_in_order(width: int, number: int) -> bool:
    """Tells whether Iceberg gives a number, and all greater ones, the partition that PyIceberg computes too.

    PyIceberg knows no overflow; where Iceberg's ints overflow, the partition may be any.
    width: of the truncate. number: of a column of ints or longs.
    """
    return width <= WIDEST and LEAST + width <= number
