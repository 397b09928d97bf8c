"""Delete files are found by index as they are by comparing each with each, and in a time that grows with their number.
What one delete file applies to is tested with real tables in tests/integration/test_landing.py."""

from __future__ import annotations

from itertools import product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry, ManifestEntryStatus
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record

from lakehouse_assets.commit import deletes
from lakehouse_assets.commit.deletes import DataFiles, DeleteFiles

DATA, POSITIONS, EQUALITY = DataFileContent.DATA, DataFileContent.POSITION_DELETES, DataFileContent.EQUALITY_DELETES
SPECS = {
    0: UNPARTITIONED_PARTITION_SPEC,
    1: PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"), spec_id=1),
}
PATHS = ["a", "b", "c", "é", "\U0001f600", "\uffff"]


def entry(
    content: DataFileContent, path: str, spec_id: int, value: int, sequence: int, bounds: tuple[str, str] | None = None
) -> ManifestEntry:
    low, high = ({deletes.PATH_ID: bound.encode()} for bound in bounds) if bounds else (None, None)
    file = DataFile.from_args(
        content=content,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(value) if spec_id else Record(),
        record_count=1,
        file_size_in_bytes=1,
        lower_bounds=low,
        upper_bounds=high,
    )
    file.spec_id = spec_id
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.EXISTING, snapshot_id=1, sequence_number=sequence, data_file=file
    )


places = {"spec_id": st.integers(0, 1), "value": st.integers(0, 2), "sequence": st.integers(0, 3)}
data_files = st.lists(
    st.builds(entry, st.just(DATA), st.sampled_from(PATHS), **places), max_size=6, unique_by=lambda e: e.data_file
)
ranges = st.tuples(st.sampled_from(PATHS), st.sampled_from(PATHS)).map(sorted).map(tuple)
delete_files = st.lists(
    st.builds(entry, st.sampled_from([POSITIONS, EQUALITY]), st.just("d"), bounds=st.none() | ranges, **places),
    max_size=6,
)


@settings(max_examples=400, deadline=None)
@given(data_files, delete_files)
def test_what_applies_is_what_comparing_each_with_each_finds(
    data: list[ManifestEntry], deleting: list[ManifestEntry]
) -> None:
    pairs = {(id(d), id(f)) for d, f in product(deleting, data) if deletes.may_apply(d, f, SPECS)}
    index, files = DeleteFiles(deleting, SPECS), DataFiles(data, SPECS)
    found = [(id(delete), id(file)) for file in data for delete in index.applying_to(file)]
    assert len(found) == len(set(found))
    assert set(found) == pairs
    needed = {delete for delete, _ in pairs}
    assert {id(delete) for delete in deleting if files.any_needs(delete)} == needed
    assert sorted(map(id, index.applying_to_any(data))) == sorted(needed)


def test_thousands_of_delete_files_are_not_compared_with_thousands_of_data_files(monkeypatch: Any) -> None:
    count, compared = 2000, []
    data = [entry(DATA, f"{n:05}", 1, n % 10, 1) for n in range(count)]
    positions = [entry(POSITIONS, "d", 1, n % 10, 2, (f"{n:05}", f"{n:05}")) for n in range(count)]
    equality = [entry(EQUALITY, "e", 1, n % 10, 1) for n in range(count)]  # older than what they would delete
    ranged = [entry(POSITIONS, "r", 1, n % 10, 1, (f"{n:05}a", f"{n + 10:05}")) for n in range(count)]
    deleting = [*positions, *equality, *ranged]
    real = deletes.may_apply
    monkeypatch.setattr(deletes, "may_apply", lambda *a: (compared.append(1), real(*a))[1])
    files, index = DataFiles(data, SPECS), DeleteFiles(positions, SPECS)
    assert sum(map(files.any_needs, deleting)) == count + sum(n + 10 < count for n in range(count))
    assert len(index.applying_to_any(data)) == count
    assert all(len(list(index.applying_to(file))) == 1 for file in data)
    assert len(compared) < 6 * count
