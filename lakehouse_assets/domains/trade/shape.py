"""The shape of the trade statistics: months, columns, a figure's key."""

from __future__ import annotations

YEARS = tuple(str(year) for year in range(2017, 2021))
MONTHS = tuple(f"{year}{month:02}" for year in YEARS for month in range(1, 13) if f"{year}{month:02}" <= "202010")
"""YYYYMM of all partitions."""
KEY = ("exp_imp", "ym", "Country", "Custom", "hs9")
"""The columns that identify a figure."""
# The columns of a line of the customs files, and of a correction.
LINE = ("exp_imp", "Year", "month", "ym", "Country", "Custom", "hs2", "hs4", "hs6", "hs9", "Q1", "Q2", "Value")
CORRECTION = (*KEY, "Q1", "Q2", "Value", "revision", "op")
