"""The lean manifest reader finds what PyIceberg's own finds, whatever wrote the manifest, and refuses torn ones.
Manifests that Spark wrote are in tests/integration/test_health_catalogs.py."""

from __future__ import annotations

import math
from datetime import date
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestFile, read_manifest_list, write_manifest_list
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.transforms import (
    DayTransform,
    IdentityTransform,
)

from lakehouse_assets.commit.avro_file import read_avro
from lakehouse_assets.commit.manifest_reader import (
    LiveFile,
    listed_manifests,
    live_files,
    live_paths,
    read_manifest,
)
from lakehouse_assets.errors import UnreadableMetadata
from tests.support.manifests import ADDED, DELETED, EQUALITY, EXISTING, POSITIONS, Listed, write_manifest
from tests.support.partition_kinds import PARTITIONS, SCHEMA, SPEC

IO = PyArrowFileIO()
IDENTITY = IdentityTransform()


def by_pyiceberg(manifest: ManifestFile) -> list[LiveFile]:
    return [
        LiveFile(
            content=entry.data_file.content,
            partition=tuple(entry.data_file.partition[at] for at in range(len(entry.data_file.partition))),
            rows=entry.data_file.record_count,
            size=entry.data_file.file_size_in_bytes,
            sequence=entry.sequence_number,
        )
        for entry in manifest.fetch_manifest_entry(IO, discard_deleted=True)
    ]


def of_snapshot(manifest: ManifestFile, sequence: int = 9) -> ManifestFile:
    """As a snapshot's manifest list has it."""
    manifest.sequence_number = sequence
    return manifest


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(partitions=st.lists(PARTITIONS, min_size=1, max_size=5), per_block=st.integers(1, 5))
def test_partitions_of_all_kinds_are_those_that_pyiceberg_finds(
    tmp_path: Path, partitions: list[tuple[Any, ...]], per_block: int
) -> None:
    listed = [Listed(partition, size=n, rows=2 * n) for n, partition in enumerate(partitions)]
    manifest = of_snapshot(write_manifest(f"{tmp_path}/m.avro", SPEC, SCHEMA, listed, per_block=per_block))
    found = list(live_files(read_manifest(IO, manifest), manifest))
    assert found == by_pyiceberg(manifest)
    assert [file.partition for file in found] == partitions
    assert [list(map(type, file.partition)) for file in found] == [list(map(type, p)) for p in partitions]


@pytest.mark.parametrize("per_block", [1, 3, 100])
@pytest.mark.parametrize("codec", ["null", "gzip", "zstd"])
@pytest.mark.parametrize("columns", [0, 3, 50])
def test_whatever_the_metrics_the_codec_and_the_blocks(
    tmp_path: Path, columns: int, codec: str, per_block: int
) -> None:
    listed = [Listed((), n + 1, 3 * n, sequence=n, columns=columns + n % 2) for n in range(7)]
    spec, path = UNPARTITIONED_PARTITION_SPEC, f"{tmp_path}/m.avro"
    manifest = of_snapshot(write_manifest(path, spec, SCHEMA, listed, codec=codec, per_block=per_block))
    found = list(live_files(read_manifest(IO, manifest), manifest))
    assert found == by_pyiceberg(manifest)
    assert [file.size for file in found] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("per_block", [1, 100])
def test_deleted_entries_are_left_out_and_added_ones_inherit_the_manifests_sequence_number(
    tmp_path: Path, per_block: int
) -> None:
    listed = [
        Listed(size=1, status=ADDED, sequence=None),
        Listed(size=2, status=EXISTING, sequence=4),
        Listed(size=3, status=DELETED, sequence=5),
        Listed(size=4, status=ADDED, sequence=2),
    ]
    spec, path = UNPARTITIONED_PARTITION_SPEC, f"{tmp_path}/m.avro"
    manifest = of_snapshot(write_manifest(path, spec, SCHEMA, listed, per_block=per_block))
    found = list(live_files(read_manifest(IO, manifest), manifest))
    assert found == by_pyiceberg(manifest)
    assert [(file.size, file.sequence) for file in found] == [(1, 9), (2, 4), (4, 2)]


def test_delete_files_of_both_kinds(tmp_path: Path) -> None:
    listed = [Listed(content=POSITIONS, rows=8), Listed(content=EQUALITY, rows=9)]
    path = f"{tmp_path}/m.avro"
    manifest = of_snapshot(write_manifest(path, UNPARTITIONED_PARTITION_SPEC, SCHEMA, listed))
    found = list(live_files(read_manifest(IO, manifest), manifest))
    assert found == by_pyiceberg(manifest)
    assert [(file.content, file.rows) for file in found] == [(POSITIONS, 8), (EQUALITY, 9)]


def test_manifests_of_version_1_which_an_upgraded_table_keeps(tmp_path: Path) -> None:
    spec = PartitionSpec(PartitionField(6, 1000, DayTransform(), "day"))
    listed = [Listed((n,), size=n + 1, status=status) for n, status in enumerate([ADDED, EXISTING, DELETED])]
    manifest = of_snapshot(write_manifest(f"{tmp_path}/m.avro", spec, SCHEMA, listed, version=1), sequence=0)
    found = list(live_files(read_manifest(IO, manifest), manifest))
    assert found == by_pyiceberg(manifest)
    assert [(file.partition, file.sequence) for file in found] == [((0,), 0), ((1,), 0)]


def test_all_nan_are_one_partition(tmp_path: Path) -> None:
    spec = PartitionSpec(PartitionField(5, 1000, IDENTITY, "c5"))
    listed = [Listed((value,)) for value in (math.nan, float("nan"), None, 1.5)]
    manifest = of_snapshot(write_manifest(f"{tmp_path}/m.avro", spec, SCHEMA, listed))
    assert len({file.partition for file in live_files(read_manifest(IO, manifest), manifest)}) == 3


def test_doubles_are_exact_while_pyiceberg_rounds_them_to_floats(tmp_path: Path) -> None:
    spec = PartitionSpec(PartitionField(5, 1000, IDENTITY, "c5"))
    values = [(16_777_217.0,), (1e300,), (-0.1,), (None,)]
    manifest = of_snapshot(write_manifest(f"{tmp_path}/m.avro", spec, SCHEMA, map(Listed, values)))
    assert [file.partition for file in live_files(read_manifest(IO, manifest), manifest)] == values
    assert [file.partition for file in by_pyiceberg(manifest)] != values, "PyIceberg is right: its reader will do"


@pytest.mark.parametrize("codec", ["null", "gzip"])
def test_a_torn_manifest_is_refused_wherever_it_ends(tmp_path: Path, codec: str) -> None:
    path = tmp_path / "m.avro"
    listed = [Listed(size=n, columns=1) for n in range(2)]
    manifest = of_snapshot(write_manifest(str(path), UNPARTITIONED_PARTITION_SPEC, SCHEMA, listed, codec=codec))
    whole = path.read_bytes()
    blocks = whole.index(whole[-16:]) + 16
    for end in (0, 1, blocks, *range(blocks + 1, len(whole), 7), len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(UnreadableMetadata, match=r"m\.avro is torn or foreign"):
            list(live_files(read_manifest(IO, manifest), manifest))
    for end in range(blocks, len(whole) - 1, 3):  # a disk that was full: the end is zeros
        path.write_bytes(whole[:end].ljust(len(whole), b"\0"))
        with pytest.raises(UnreadableMetadata, match=r"no Avro block"):
            list(live_files(read_manifest(IO, manifest), manifest))


def test_another_file_at_the_path_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.avro"
    manifest = write_manifest(str(path), UNPARTITIONED_PARTITION_SPEC, SCHEMA, [Listed()])
    path.write_bytes(b"x" * (manifest.manifest_length + 1))
    with pytest.raises(UnreadableMetadata, match=r"bytes, its manifest list says"):
        list(live_files(read_manifest(IO, manifest), manifest))


@pytest.mark.parametrize(
    ("old", "new"), [(b"deflate", b"deflute"), (b"avro.schema", b"avro.schima"), (None, b"")], ids=str
)
def test_a_manifest_that_can_not_be_decoded_is_refused(tmp_path: Path, old: bytes | None, new: bytes) -> None:
    path = tmp_path / "m.avro"
    manifest = of_snapshot(write_manifest(str(path), UNPARTITIONED_PARTITION_SPEC, SCHEMA, [Listed()]))
    whole = path.read_bytes()
    middle = len(whole) - 60  # of the only block
    path.write_bytes(whole.replace(old, new) if old else whole[:middle] + b"\xff" * 8 + whole[middle + 8 :])
    with pytest.raises(UnreadableMetadata, match=r"m\.avro is torn or foreign"):
        list(live_files(read_manifest(IO, manifest), manifest))


def test_dates_and_identifiers_are_what_regions_compare_with(tmp_path: Path) -> None:
    spec = PartitionSpec(PartitionField(6, 1000, IDENTITY, "day"), PartitionField(13, 1001, IDENTITY, "id"))
    day, identifier = (date(2013, 1, 2) - date(1970, 1, 1)).days, UUID(int=7)
    manifest = of_snapshot(write_manifest(f"{tmp_path}/m.avro", spec, SCHEMA, [Listed((day, identifier))]))
    assert [file.partition for file in live_files(read_manifest(IO, manifest), manifest)] == [(day, identifier)]


def manifest_list(tmp_path: Path, manifests: int) -> Path:
    written = [
        of_snapshot(write_manifest(f"{tmp_path}/m{n}.avro", UNPARTITIONED_PARTITION_SPEC, SCHEMA, [Listed(size=n)]))
        for n in range(manifests)
    ]
    path = tmp_path / "snap.avro"
    with write_manifest_list(2, IO.new_output(str(path)), 42, None, 9, "gzip") as writer:
        writer.add_manifests(written)
    return path


@pytest.mark.parametrize("per_block", [1, 2, 100])
def test_the_paths_of_live_files_are_those_that_pyiceberg_finds(tmp_path: Path, per_block: int) -> None:
    listed = [Listed(status=status, columns=n) for n, status in enumerate([ADDED, DELETED, EXISTING, DELETED, ADDED])]
    path = f"{tmp_path}/m.avro"
    manifest = of_snapshot(write_manifest(path, UNPARTITIONED_PARTITION_SPEC, SCHEMA, listed, per_block=per_block))
    expected = [entry.data_file.file_path for entry in manifest.fetch_manifest_entry(IO, discard_deleted=True)]
    assert list(live_paths(read_manifest(IO, manifest), path)) == expected
    assert len(expected) == 3


def test_a_manifest_list_lists_what_pyiceberg_finds(tmp_path: Path) -> None:
    path = manifest_list(tmp_path, 3)
    found = list(listed_manifests(read_avro(IO, str(path)), str(path)))
    expected = [(m.manifest_path, m.manifest_length) for m in read_manifest_list(IO.new_input(str(path)))]
    assert found == expected
    assert len(found) == 3


def test_a_torn_or_foreign_manifest_list_is_refused_while_pyiceberg_takes_it_for_a_shorter_one(tmp_path: Path) -> None:
    path = manifest_list(tmp_path, 2)
    whole = path.read_bytes()
    header = whole.index(whole[-16:]) + 16
    for end in [end for end in range(0, len(whole), 5) if end != header]:
        with pytest.raises(UnreadableMetadata, match=r"snap\.avro is torn or foreign"):
            list(listed_manifests(whole[:end], str(path)))
    manifest = (tmp_path / "m0.avro").read_bytes()
    with pytest.raises(UnreadableMetadata, match=r"an entry without a path"):
        list(listed_manifests(manifest, "m0.avro"))
