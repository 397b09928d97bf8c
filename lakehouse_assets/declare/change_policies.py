"""What a table declares should happen when its declaration and the table in the catalog differ.
The differences themselves, and what each of these makes of them, are in commit/."""

from __future__ import annotations

from enum import StrEnum


class OnSchemaChange(StrEnum):
    """What a run does about columns that differ. Nothing that it does rewrites a data file."""

    FAIL = "fail"
    """It fails, before a worker starts."""
    IGNORE = "ignore"
    """It leaves the table's columns as they are: values for columns that the table lacks are not written, columns that
    are not declared get nulls, and values are stored as the table's types where Spark lets them be."""
    APPEND_NEW_COLUMNS = "append_new_columns"
    """It adds columns, widens types and lets columns be null as declared, in the commit that brings its rows. Columns
    that are not declared stay, and get nulls."""
    SYNC_ALL_COLUMNS = "sync_all_columns"
    """As append_new_columns, and it drops columns that are not declared."""


class OnLayoutChange(StrEnum):
    """What a run does where partitions, sort order, table properties or the columns' docs differ."""

    FAIL = "fail"
    """It fails, before a worker starts."""
    EVOLVE = "evolve"
    """It changes the table, in the commit that brings its rows. Files that are there stay as they are."""
