"""Policies of a table for the case that its declaration and the table in the catalog differ.

The differences themselves, and what each of these makes of them, are in commit/.
"""

from __future__ import annotations

from enum import StrEnum


class OnSchemaChange(StrEnum):
    """The policy of a run for columns that differ. No policy rewrites a data file."""

    FAIL = "fail"
    """It fails, before a worker starts."""
    IGNORE = "ignore"
    """It leaves the table's columns as they are: values for columns that the table lacks are not written, columns that
    are not declared get nulls, and values are stored as the table's types where Spark lets them be."""
    APPEND_NEW_COLUMNS = "append_new_columns"
    """It adds columns, widens types and lets columns be null as declared, in the commit that brings its rows. Columns
    that are not declared stay, and get nulls."""
    SYNC_ALL_COLUMNS = "sync_all_columns"
    """It does what append_new_columns does, and drops columns that are not declared."""


class OnLayoutChange(StrEnum):
    """The policy of a run where partitions, sort order, table properties or the columns' docs differ."""

    FAIL = "fail"
    """It fails, before a worker starts."""
    EVOLVE = "evolve"
    """It changes the table, in the commit that brings its rows. The files that are there already stay as they are."""
