"""Which rows share their unique key, and where: counted in files that PyIceberg staged.
What Spark counts, where there are many rows, is in tests/integration/test_asset.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import StaticTable

from lakehouse_assets.worker.row_checks import SHOWN, find_duplicates
from tests.support.forks import Daily, daily_rows

DAYS = ("2013-01-01", "2013-01-02", "2013-01-03")


@pytest.fixture
def daily(tmp_path: Path) -> Daily:
    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    return Daily.create(catalog)


def duplicates(daily: Daily, rows: pa.Table) -> tuple[str, ...]:
    fork = StaticTable.from_metadata(daily.receipt("run", 0, DAYS, rows).metadata_location)
    return find_duplicates(None, "stage.forks.fork", fork, ["carrier"])  # type: ignore[arg-type]  # no need for Spark


def test_each_example_names_its_partition(daily: Daily) -> None:
    assert duplicates(daily, daily_rows(*DAYS)) == (), "unique within a partition"
    rows = pa.concat_tables(
        [daily_rows(DAYS[0]), daily_rows(DAYS[1], each=2), daily_rows(DAYS[2], carrier="B6", each=3)]
    )
    assert sorted(duplicates(daily, rows)) == [
        "carrier=AA: 2 rows in day=2013-01-02",
        "carrier=B6: 3 rows in day=2013-01-03",
    ]


def test_a_table_without_partitions_has_none_to_name(daily: Daily) -> None:
    table = daily.catalog.create_table("nyc.whole", daily.table.schema())
    table.append(daily_rows(DAYS[0], each=2))
    found = find_duplicates(None, "", StaticTable.from_metadata(table.metadata_location), ["carrier"])  # type: ignore[arg-type]
    assert found == ("carrier=AA: 2 rows",)


def test_there_are_as_many_examples_as_a_person_reads(daily: Daily) -> None:
    rows = pa.concat_tables([daily_rows(*DAYS, carrier=f"A{n}", each=2) for n in range(SHOWN)])
    assert len(duplicates(daily, rows)) == SHOWN


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_zeros_of_either_sign_and_nans_of_any_bits_are_one_key_as_they_are_to_a_merge(
    daily: Daily, kind: pa.DataType
) -> None:
    bits = {
        pa.float32(): ("<u4", [0x7FC00000, 0x7FC00001, 0xFFC00000]),
        pa.float64(): ("<u8", [0x7FF8 << 48, 0x7FF80001 << 32, 0xFFF8 << 48]),
    }
    width, nans = bits[kind]
    nan = pa.array(np.array(nans, width).view(width.replace("u", "f")))
    values = pa.concat_arrays([pa.array([0.0, -0.0, 0.1, -0.1, None], kind), nan])
    rows = pa.table({"x": values})
    table = daily.catalog.create_table("nyc.floats", rows.schema)
    table.append(rows)
    found = find_duplicates(None, "", StaticTable.from_metadata(table.metadata_location), ["x"])  # type: ignore[arg-type]
    assert sorted(found) == ["x=0.0: 2 rows", "x=nan: 3 rows"]
