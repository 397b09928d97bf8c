"""Kept summaries come back as they were, or not at all: a torn or foreign file counts as none."""

from __future__ import annotations

import gzip
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestContent, ManifestFile

from lakehouse_assets.maintenance.health import summaries
from lakehouse_assets.maintenance.health.summaries import SizeLimits, Summary, SummaryCache, line, summaries_in

TABLE, LIMITS = UUID(int=1), SizeLimits(64, 384)
VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
    | st.uuids()
    | st.decimals(allow_nan=False, allow_infinity=False)
)


def manifest(path: str = "s3://lake/t/metadata/é\n1-m0.avro", length: int = 5000) -> ManifestFile:
    return ManifestFile.from_args(
        manifest_path=path, manifest_length=length, partition_spec_id=3, content=ManifestContent.DATA
    )


def summary(*partition: Any) -> Summary:
    return Summary(3, 0, partition, 4, 1000, 50, 3, 100, 1, 300, 2, 9)


def same(one: Any, other: Any) -> bool:
    """Equal, of one type, and NaN as well."""
    return type(one) is type(other) and (one == other or (one != one and other is math.nan))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(VALUES, max_size=4), max_size=4))
def test_all_partition_values_come_back_as_they_were(partitions: list[list[Any]]) -> None:
    written = [summary(*values) for values in partitions]
    found = summaries_in(line(manifest(), written))
    assert [s._replace(partition=()) for s in found] == [s._replace(partition=()) for s in written]
    pairs = [pair for f, w in zip(found, written, strict=True) for pair in zip(f.partition, w.partition, strict=True)]
    assert all(same(value, before) or same(before, value) for value, before in pairs)
    assert all(value is math.nan for value, _ in pairs if value != value), "partitions are counted by these"


def test_all_nan_come_back_as_one_object() -> None:
    (found,) = summaries_in(line(manifest(), [summary(math.nan, float("nan"), math.inf, -math.inf)]))
    assert all(value is math.nan for value in found.partition[:2])
    assert found.partition[2:] == (math.inf, -math.inf)


def test_decimals_keep_their_digits() -> None:
    (found,) = summaries_in(line(manifest(), [summary(Decimal("1.20"))]))
    assert str(found.partition[0]) == "1.20"


@pytest.fixture
def cache(tmp_path: Path) -> SummaryCache:
    return SummaryCache(PyArrowFileIO(), f"{tmp_path}/staging/health")


LINES = {(f"m{n}", 5000): line(manifest(f"m{n}"), [summary(n), summary(None)]) for n in range(3)}


def test_what_is_kept_is_found_by_path(cache: SummaryCache) -> None:
    assert cache.read(TABLE, LIMITS) == {}
    cache.write(TABLE, LIMITS, LINES.values())
    assert cache.read(TABLE, LIMITS) == LINES
    cache.write(TABLE, LIMITS, [])
    assert cache.read(TABLE, LIMITS) == {}


def test_other_limits_and_another_table_find_nothing(cache: SummaryCache) -> None:
    cache.write(TABLE, LIMITS, LINES.values())
    assert cache.read(TABLE, SizeLimits(65, 384)) == {}
    assert cache.read(UUID(int=2), LIMITS) == {}
    Path(cache.location(UUID(int=2))).write_bytes(Path(cache.location(TABLE)).read_bytes())
    assert cache.read(UUID(int=2), LIMITS) == {}, "a file that was copied to another table's place"


def test_a_torn_file_counts_as_none_wherever_it_ends(cache: SummaryCache) -> None:
    cache.write(TABLE, LIMITS, LINES.values())
    path = Path(cache.location(TABLE))
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        assert cache.read(TABLE, LIMITS) == {}


def test_a_changed_byte_is_noticed_wherever_it_is(cache: SummaryCache) -> None:
    cache.write(TABLE, LIMITS, LINES.values())
    path = Path(cache.location(TABLE))
    whole = path.read_bytes()
    for at in range(10, len(whole)):  # the first ten are gzip's header: time, operating system
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        # A repetition can be spelled in two ways: then what is kept is the same.
        assert cache.read(TABLE, LIMITS) in ({}, LINES)


@pytest.mark.parametrize("content", [b"", b"x"], ids=["no byte", "no gzip"])
def test_a_file_that_is_no_gzip_counts_as_none(cache: SummaryCache, content: bytes) -> None:
    cache.write(TABLE, LIMITS, LINES.values())
    Path(cache.location(TABLE)).write_bytes(content)
    assert cache.read(TABLE, LIMITS) == {}


@pytest.mark.parametrize("content", [b"", b"\xff", b"{}\n[]", b"null"])
def test_a_foreign_file_counts_as_none(cache: SummaryCache, content: bytes) -> None:
    cache.write(TABLE, LIMITS, LINES.values())
    Path(cache.location(TABLE)).write_bytes(gzip.compress(content))
    assert cache.read(TABLE, LIMITS) == {}


def test_code_that_counts_something_else_does_not_misread_it(
    cache: SummaryCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write(TABLE, LIMITS, LINES.values())
    monkeypatch.setattr(summaries, "FIELDS", ("spec_id", "content"))
    assert cache.read(TABLE, LIMITS) == {}


def test_a_place_that_can_not_be_written_or_read_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "staging").write_text("a file where a folder should be")
    cache = SummaryCache(PyArrowFileIO(), f"{tmp_path}/staging/health")
    cache.write(TABLE, LIMITS, LINES.values())
    assert cache.read(TABLE, LIMITS) == {}
    assert "the next look reads all manifests" in caplog.text


def test_it_takes_little_room(cache: SummaryCache) -> None:
    lines = [line(manifest(f"s3://lake/t/metadata/{n}-m0.avro"), [summary(n)]) for n in range(1000)]
    cache.write(TABLE, LIMITS, lines)
    assert Path(cache.location(TABLE)).stat().st_size < 20_000
    assert json.loads(lines[0])[0].endswith("0-m0.avro")
