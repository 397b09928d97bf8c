"""Whose a metadata file is that the catalog does not name, one case after the other.
Real catalogs that part are in tests/integration/test_collect_lineage.py."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table.snapshots import MetadataLogEntry

from lakehouse_assets.maintenance.collect.lineage import Lineage, LineageFacts, MetadataOrigin, read_facts

OURS, THEIRS = UUID(int=1), UUID(int=2)
T = "s3://lake/t/metadata"


def line() -> Lineage:
    """Versions 3, 4 and 5, written at 30, 40 and 50; the earlier ones are forgotten."""
    found = Lineage(OURS, 50)
    for version in (3, 4, 5):
        found.add(f"{T}/{version}.metadata.json", version * 10)
    return found


def stands(
    updated_ms: int, *log: str, uuid: UUID = OURS, is_fork: bool = False, is_settled: bool = False
) -> MetadataOrigin:
    paths = (name if "/" in name else f"{T}/{name}.metadata.json" for name in log)
    entries = tuple(MetadataLogEntry(metadata_file=path, timestamp_ms=0) for path in paths)
    return line().standing(LineageFacts(uuid, updated_ms, entries, is_fork), is_settled=is_settled)


def test_another_uuid_is_another_table_whatever_its_log() -> None:
    assert stands(60, "4", "5", uuid=THEIRS) is MetadataOrigin.OTHER_TABLE


@pytest.mark.parametrize("log", [("4", "5"), ("3",), ("s3a://lake/t/metadata/4.metadata.json",)])
@pytest.mark.parametrize("updated_ms", [1, 35, 60])
def test_one_commit_on_top_of_the_line_may_have_failed(log: tuple[str, ...], updated_ms: int) -> None:
    assert stands(updated_ms, *log) is MetadataOrigin.SIDE


@pytest.mark.parametrize("log", [("4", "5", "6"), ("3", "4b"), ("6",), ()])
def test_two_commits_on_top_of_it_are_another_catalogs(log: tuple[str, ...]) -> None:
    assert stands(60, *log) is MetadataOrigin.OTHER_CATALOG
    assert stands(31, *log) is MetadataOrigin.OTHER_CATALOG, "what the line has since does not matter"


@pytest.mark.parametrize("log", [(), ("1",), ("0", "1")])
def test_what_is_older_than_all_that_is_known_of_the_line_is_the_tables_past(log: tuple[str, ...]) -> None:
    assert stands(30, *log) is MetadataOrigin.PAST
    assert stands(20, *log) is MetadataOrigin.PAST


def test_a_fork_is_a_fork_however_often_it_was_committed_to() -> None:
    assert stands(60, "fork-1", is_fork=True) is MetadataOrigin.FORK


def facts(folder: Path, text: str) -> LineageFacts | None:
    path = folder / "x.metadata.json"
    path.write_text(text)
    return read_facts(PyArrowFileIO(), str(path))


def test_facts_are_read_from_what_is_written(tmp_path: Path) -> None:
    uuid = f'"table-uuid": "{OURS}", "last-updated-ms": 7'
    assert facts(tmp_path, f"{{{uuid}}}") == LineageFacts(OURS, 7)
    log = '"metadata-log": [{"metadata-file": "a", "timestamp-ms": 3}, {"metadata-file": "b", "timestamp-ms": 4}]'
    entries = tuple(MetadataLogEntry(metadata_file=name, timestamp_ms=at) for name, at in (("a", 3), ("b", 4)))
    assert facts(tmp_path, f"{{{uuid}, {log}}}") == LineageFacts(OURS, 7, entries)
    found = facts(tmp_path, '{"last-updated-ms": 7, "format-version": 1}')
    assert found, "version 1 may have none"
    assert found.uuid != OURS, "version 1 may have none"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"table-uuid": "x", "last-updated-ms": 7}', "\x1f\u008b"])
def test_what_is_torn_or_no_metadata_says_nothing(tmp_path: Path, text: str) -> None:
    assert facts(tmp_path, text) is None
    assert read_facts(PyArrowFileIO(), str(tmp_path / "gone.metadata.json")) is None
