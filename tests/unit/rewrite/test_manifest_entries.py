"""Entries that are copied as bytes are, to PyIceberg's reader, the entries that they were, whatever wrote them.
How the copies land is in tests/integration/test_rewrite_manifests.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC

from lakehouse_assets.commit.avro_file import open_avro
from lakehouse_assets.commit.manifest_reader import read_manifest
from lakehouse_assets.errors import UnreadableMetadata
from lakehouse_assets.rewrite.manifest_entries import EntryDigest, is_copyable, raw_entries, write_entries
from tests.support.manifests import (
    ADDED,
    DELETED,
    EQUALITY,
    EXISTING,
    POSITIONS,
    Listed,
    entry_fields,
    write_manifest,
)
from tests.support.partition_kinds import PARTITIONS, SCHEMA, SPEC

IO = PyArrowFileIO()


def of_snapshot(manifest: ManifestFile, sequence: int = 9) -> ManifestFile:
    """As a snapshot's manifest list has it."""
    manifest.sequence_number = sequence
    return manifest


def copied(manifest: ManifestFile) -> ManifestFile:
    """A manifest with the same live entries, of a later snapshot."""
    data = read_manifest(IO, manifest)
    header, _ = open_avro(data, manifest.manifest_path)
    path = f"{manifest.manifest_path}.copy"
    output = IO.new_output(path)
    write_entries(output, header.meta, list(raw_entries(data, manifest)))
    return ManifestFile.from_args(
        manifest_path=path,
        manifest_length=len(output),
        partition_spec_id=manifest.partition_spec_id,
        content=manifest.content,
        sequence_number=99,
        added_snapshot_id=99,
    )


def is_same(manifest: ManifestFile, copy: ManifestFile) -> bool:
    live = copy.fetch_manifest_entry(IO, discard_deleted=False)
    assert all(entry.status is EXISTING for entry in live)
    return entry_fields(live) == entry_fields(manifest.fetch_manifest_entry(IO, discard_deleted=True))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(partitions=st.lists(PARTITIONS, min_size=1, max_size=5), per_block=st.integers(1, 5))
def test_entries_of_partitions_of_all_kinds_are_the_same(
    tmp_path: Path, partitions: list[tuple[Any, ...]], per_block: int
) -> None:
    listed = [Listed(partition, size=n, rows=2 * n) for n, partition in enumerate(partitions)]
    manifest = of_snapshot(write_manifest(f"{tmp_path}/m.avro", SPEC, SCHEMA, listed, per_block=per_block))
    assert is_same(manifest, copied(manifest))
    found = list(raw_entries(read_manifest(IO, manifest), manifest))
    assert [(entry.partition, entry.rows) for entry in found] == [(of.partition, of.rows) for of in listed]


@pytest.mark.parametrize("per_block", [1, 3, 100])
@pytest.mark.parametrize("codec", ["null", "gzip", "zstd"])
@pytest.mark.parametrize("columns", [0, 3, 50])
def test_entries_are_the_same_whatever_the_metrics_the_codec_and_the_blocks(
    tmp_path: Path, columns: int, codec: str, per_block: int
) -> None:
    listed = [Listed((), n + 1, 3 * n, sequence=2**n, columns=columns + n % 2) for n in range(40)]
    path = f"{tmp_path}/m.avro"
    manifest = write_manifest(path, UNPARTITIONED_PARTITION_SPEC, SCHEMA, listed, codec=codec, per_block=per_block)
    assert is_same(of_snapshot(manifest), copied(manifest))


@pytest.mark.parametrize("per_block", [1, 100])
def test_live_entries_keep_what_they_inherited(tmp_path: Path, per_block: int) -> None:
    listed = [
        Listed(size=1, status=ADDED, sequence=None),
        Listed(size=2, status=EXISTING, sequence=4),
        Listed(size=3, status=DELETED, sequence=5),
        Listed(size=4, status=ADDED, sequence=2),
    ]
    path = f"{tmp_path}/m.avro"
    manifest = of_snapshot(
        write_manifest(path, UNPARTITIONED_PARTITION_SPEC, SCHEMA, listed, per_block=per_block, snapshot_id=42)
    )
    copy = copied(manifest)
    assert is_same(manifest, copy)
    found = copy.fetch_manifest_entry(IO)
    assert [(e.data_file.file_size_in_bytes, e.sequence_number, e.snapshot_id) for e in found] == [
        (1, 9, 42),
        (2, 4, 7),
        (4, 2, 7),
    ]


def test_delete_files_of_both_kinds_are_the_same(tmp_path: Path) -> None:
    listed = [Listed(content=POSITIONS, rows=8), Listed(content=EQUALITY, rows=9)]
    manifest = of_snapshot(write_manifest(f"{tmp_path}/m.avro", UNPARTITIONED_PARTITION_SPEC, SCHEMA, listed))
    assert is_same(manifest, copied(manifest))


def test_a_copy_has_a_thousand_entries_a_block(tmp_path: Path) -> None:
    listed = [Listed(size=n) for n in range(2500)]
    manifest = of_snapshot(write_manifest(f"{tmp_path}/m.avro", UNPARTITIONED_PARTITION_SPEC, SCHEMA, listed))
    copy = copied(manifest)
    _, blocks = open_avro(read_manifest(IO, copy), copy.manifest_path)
    assert [count for count, _ in blocks] == [1000, 1000, 500]
    assert copy.manifest_length * 5 < manifest.manifest_length
    assert is_same(manifest, copy)


def test_manifests_of_version_1_are_not_copied(tmp_path: Path) -> None:
    for version in (1, 2):
        path = f"{tmp_path}/{version}.avro"
        manifest = write_manifest(path, UNPARTITIONED_PARTITION_SPEC, SCHEMA, [Listed()], version=version)
        header, _ = open_avro(read_manifest(IO, manifest), manifest.manifest_path)
        assert is_copyable(header.meta) == (version == 2)


def test_a_block_with_more_than_its_entries_is_refused(tmp_path: Path) -> None:
    path = f"{tmp_path}/m.avro"
    manifest = write_manifest(path, UNPARTITIONED_PARTITION_SPEC, SCHEMA, [Listed()], codec="null")
    header, ((_, block),) = open_avro(read_manifest(IO, manifest), manifest.manifest_path)
    data = Path(path).read_bytes()
    start = len(data) - len(block) - 16
    size = len(block) + 1
    assert data[start - 3 : start] == bytes([2]) + _varint(len(block)), "the count, and the size of the block"
    torn = data[: start - 2] + _varint(size) + block + b"\0" + header.sync
    with pytest.raises(UnreadableMetadata, match=r"a block of \d+ bytes whose 1 entries end at"):
        list(raw_entries(torn, of_snapshot(manifest)))


def test_a_live_entry_without_a_sequence_number_is_refused(tmp_path: Path) -> None:
    listed = [Listed(status=ADDED, sequence=None)]
    manifest = of_snapshot(write_manifest(f"{tmp_path}/m.avro", UNPARTITIONED_PARTITION_SPEC, SCHEMA, listed))
    data = read_manifest(IO, manifest)
    manifest.sequence_number = None
    with pytest.raises(UnreadableMetadata, match="a live entry without a snapshot or a sequence number"):
        list(raw_entries(data, manifest))


def test_digests_are_equal_for_the_same_entries_in_any_order_and_for_no_others() -> None:
    def digest(*entries: bytes) -> EntryDigest:
        found = EntryDigest()
        for entry in entries:
            found = found.plus(EntryDigest.of(entry))
        return found

    assert digest(b"a", b"b", b"b") == digest(b"b", b"a", b"b")
    others = (digest(), digest(b"a"), digest(b"a", b"b"), digest(b"a", b"b", b"c"), digest(b"a", b"a", b"b"))
    assert len({*others, digest(b"a", b"b", b"b")}) == len(others) + 1


def _varint(number: int) -> bytes:
    zigzag = number << 1
    assert 2**7 <= zigzag < 2**14
    return bytes([zigzag & 0x7F | 0x80, zigzag >> 7])
