"""Paths of partitions are PyIceberg's own, for partitions of every kind. Names by keys are in test_health.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.typedef import Record

from lakehouse_assets.maintenance.health.partition_health import partition_names
from tests.support.partition_kinds import PARTITIONS, SCHEMA, SPEC


def metadata(folder: Path) -> TableMetadata:
    return new_table_metadata(SCHEMA, SPEC, UNSORTED_SORT_ORDER, folder.as_uri())


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=PARTITIONS)
def test_a_path_is_pyicebergs(tmp_path: Path, values: tuple[Any, ...]) -> None:
    table = metadata(tmp_path)
    spec_id = table.default_spec_id
    try:
        expected = table.spec().partition_to_path(Record(*values), table.schema())
    except (ValueError, OverflowError):  # no date of Python's
        expected = str(values)
    assert partition_names(table, [(spec_id, values)], lambda _: None) == {(spec_id, values): (expected, None)}


def test_a_date_that_python_lacks_takes_only_the_path(tmp_path: Path) -> None:
    fields = [None] * 5 + [10**7] + [None] * 16
    ((name, _),) = partition_names(metadata(tmp_path), [(0, tuple(fields))], lambda _: None).values()
    assert "10000000" in name
