"""Torn and foreign manifests and manifest lists are refused, which PyIceberg takes for shorter ones.
Manifests that Spark wrote are in tests/integration/test_health_catalogs.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestFile, write_manifest_list
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC

from lakehouse_assets.commit.manifests import live_entries, read_manifest_lists, read_manifests
from lakehouse_assets.errors import UnreadableMetadata
from tests.support.manifests import ADDED, DELETED, EXISTING, Listed, entry_fields, write_manifest
from tests.support.partition_kinds import SCHEMA

IO = PyArrowFileIO()
SPEC = UNPARTITIONED_PARTITION_SPEC


def written(path: Path, listed: list[Listed], sequence: int = 9, **how: object) -> ManifestFile:
    """As a snapshot's manifest list has it."""
    manifest = write_manifest(str(path), SPEC, SCHEMA, listed, **how)
    manifest.sequence_number = sequence
    return manifest


@pytest.mark.parametrize("version", [1, 2])
def test_live_entries_are_those_that_pyiceberg_finds(tmp_path: Path, version: int) -> None:
    listed = [Listed(size=n, status=status) for n, status in enumerate([ADDED, DELETED, EXISTING])]
    manifests = [written(tmp_path / f"{n}.avro", listed, version=version) for n in range(20)]
    found = list(read_manifests(IO, manifests))
    assert [manifest for manifest, _ in found] == manifests
    for manifest, entries in found:
        assert [entry.data_file.file_size_in_bytes for entry in entries] == [0, 2]
        assert entry_fields(entries) == entry_fields(manifest.fetch_manifest_entry(IO))


@pytest.mark.parametrize("codec", ["null", "gzip"])
def test_a_torn_manifest_is_refused_wherever_it_ends(tmp_path: Path, codec: str) -> None:
    path = tmp_path / "m.avro"
    manifest = written(path, [Listed(size=n, columns=1) for n in range(2)], codec=codec)
    whole = path.read_bytes()
    for end in (0, 1, *range(2, len(whole), 7), len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(UnreadableMetadata, match=r"m\.avro is torn or foreign"):
            live_entries(IO, manifest)


@pytest.mark.parametrize("codec", ["null", "gzip"])
def test_a_manifest_that_ends_with_zeros_as_after_a_full_disk_is_refused(tmp_path: Path, codec: str) -> None:
    path = tmp_path / "m.avro"
    manifest = written(path, [Listed(size=n, columns=1) for n in range(2)], codec=codec)
    whole = path.read_bytes()
    header = whole.index(whole[-16:]) + 16
    second = whole.index(whole[-16:], header) + 16
    for end in (header, header + 1, second - 20, second, second + 1, second + 9, len(whole) - 20):
        path.write_bytes(whole[:end].ljust(len(whole), b"\0"))
        with pytest.raises(UnreadableMetadata, match=r"m\.avro is torn or foreign"):
            live_entries(IO, manifest)


def test_another_file_at_the_path_is_refused(tmp_path: Path) -> None:
    manifest = written(tmp_path / "m.avro", [Listed()])
    (tmp_path / "m.avro").write_bytes(b"x" * (manifest.manifest_length + 1))
    with pytest.raises(UnreadableMetadata, match=r"bytes, but its manifest list says"):
        live_entries(IO, manifest)


@pytest.mark.parametrize(
    ("old", "new"), [(b"deflate", b"deflute"), (b"avro.schema", b"avro.schima"), (None, b"")], ids=str
)
def test_a_manifest_that_can_not_be_decoded_is_refused(tmp_path: Path, old: bytes | None, new: bytes) -> None:
    path = tmp_path / "m.avro"
    manifest = written(path, [Listed()])
    whole = path.read_bytes()
    middle = len(whole) - 60  # of the only block
    path.write_bytes(whole.replace(old, new) if old else whole[:middle] + b"\xff" * 8 + whole[middle + 8 :])
    with pytest.raises(UnreadableMetadata, match=r"m\.avro is torn or foreign"):
        live_entries(IO, manifest)


def test_a_missing_manifest_is_named(tmp_path: Path) -> None:
    manifest = written(tmp_path / "m.avro", [Listed()])
    (tmp_path / "m.avro").unlink()
    with pytest.raises(FileNotFoundError, match=r"m\.avro"):
        live_entries(IO, manifest)


def manifest_list(tmp_path: Path, manifests: int) -> Path:
    listed = [written(tmp_path / f"m{n}.avro", [Listed(size=n)]) for n in range(manifests)]
    path = tmp_path / "snap.avro"
    with write_manifest_list(2, IO.new_output(str(path)), 42, None, 9, "gzip") as writer:
        writer.add_manifests(listed)
    return path


def test_a_manifest_list_lists_what_was_written(tmp_path: Path) -> None:
    (found,) = read_manifest_lists(IO, [str(manifest_list(tmp_path, 3))])
    assert [(Path(m.manifest_path).name, m.manifest_length, m.added_files_count) for m in found] == [
        (f"m{n}.avro", (tmp_path / f"m{n}.avro").stat().st_size, 0) for n in range(3)
    ]


def test_a_torn_or_foreign_manifest_list_is_refused(tmp_path: Path) -> None:
    path = manifest_list(tmp_path, 2)
    whole = path.read_bytes()
    header = whole.index(whole[-16:]) + 16
    for end in [end for end in range(0, len(whole), 5) if end != header]:
        path.write_bytes(whole[:end])
        with pytest.raises(UnreadableMetadata, match=r"snap\.avro is torn or foreign"):
            list(read_manifest_lists(IO, [str(path)]))
    with pytest.raises(UnreadableMetadata, match=r"m0\.avro is torn or foreign"):
        list(read_manifest_lists(IO, [str(tmp_path / "m0.avro")]))
