"""Which files a step gets for its names, whatever these are, and what is said of those that are missing or damaged."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse_assets.environment.catalog import catalog_properties
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.files import delivered
from lakehouse_assets.files.delivered import DropZoneError, NotUnpacked, file_system, find_files, unpacked

ROWS = b"id,t\n" + b"1,a\n" * 1000


def put(folder: Path, name: str, content: bytes = ROWS) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def content(path: Path) -> bytes:
    with unpacked(str(path)) as file:
        return file.read()


def found(folder: Path, names: list[str], pattern: str = "{key}.csv") -> list[str]:
    return [file.location.removeprefix(f"{folder}/") for file in find_files(str(folder), names, pattern)]


@pytest.mark.parametrize(
    "name",
    [
        "2026-01-01-05:00",
        "_x",
        ".x",
        "a b",
        "Zürich",
        "[x]*",
        "*",
        "x?",
        "{x,y}",
        "x,y",
        "x\\y",
        "^x",
        "a+b",
        "50%",
        "{key}",
    ],
)
def test_a_name_may_have_any_letters_and_is_no_pattern(name: str, tmp_path: Path) -> None:
    for neighbour in ("x", "xy", "x1", "a", "aab", "_", "axb", name):
        put(tmp_path, f"{neighbour}.csv")
    assert found(tmp_path, [name]) == [f"{name}.csv"]
    (tmp_path / f"{name}.csv").unlink()
    with pytest.raises(DropZoneError, match="is missing"):
        found(tmp_path, [name])


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
@pytest.mark.parametrize("ending", ["", "/", "//"])
def test_a_folder_may_have_any_letters_and_end_with_a_slash(scheme: str, ending: str, tmp_path: Path) -> None:
    folder = tmp_path / "a b+ü#%41?" / "x"
    put(folder, "1#?.csv")
    (file,) = find_files(f"{scheme}{folder}{ending}", ["1#?"], "{key}.csv")
    assert file.location == f"{scheme}{folder}/1#?.csv"
    with unpacked(file.location) as read:
        assert read.read() == ROWS


@pytest.mark.parametrize("path", ["", "/", "/a b+ü#%41?/[x]*.csv", "/a%20b"])
def test_the_names_in_a_url_are_those_of_the_storage(path: str) -> None:
    for url, root in (("gs://bucket", "bucket"), ("abfss://zone@account.dfs.core.windows.net", "zone")):
        _, found = file_system(f"{url}{path}")
        assert found.rstrip("/") == f"{root}{path}".rstrip("/")


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_a_bucket_is_the_catalogs(scheme: str, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivered, "_s3", lambda bucket, properties: (bucket, dict(properties)))
    assert file_system(f"{scheme}://bucket/a b%20#?") == (("bucket", catalog_properties(settings)), "bucket/a b%20#?")


def test_files_are_found_by_a_pattern_compressed_or_not(tmp_path: Path) -> None:
    for name in ("orders_a.csv", "orders_b.csv.gz", "orders_c.csv.zst", "orders_d.csv.bz2", "orders_a.csv.old"):
        put(tmp_path, name)
    assert found(tmp_path, ["b", "a", "b"], "orders_{key}.csv") == ["orders_b.csv.gz", "orders_a.csv"]
    for name in ("day=a/part-2.csv", "day=a/part-1.csv.gz", "day=a/_SUCCESS", "day=a/.part-3.csv.crc", "day=a/x/1.csv"):
        put(tmp_path, name)
    assert found(tmp_path, ["a"], "day={key}/*.csv") == ["day=a/part-1.csv.gz", "day=a/part-2.csv"]
    assert found(tmp_path, [], "orders_*.csv") == [
        f"orders_{name}" for name in ("a.csv", "b.csv.gz", "c.csv.zst", "d.csv.bz2")
    ]


def test_all_names_without_a_file_or_with_two_are_told_at_once(tmp_path: Path) -> None:
    for name in ("a.csv", "a.csv.gz", "b.csv"):
        put(tmp_path, name)
    with pytest.raises(DropZoneError) as raised:
        found(tmp_path, ["a", "b", "c", "d"])
    assert str(raised.value) == (
        f"{tmp_path}/{{key}}.csv: of 4 files asked for a is there 2 times (a.csv, a.csv.gz); c, d is missing. Let the "
        "source deliver them, then run again"
    )
    assert raised.value.partitions == ("a", "c", "d")
    with pytest.raises(DropZoneError, match=f"no folder {tmp_path}/nowhere"):
        found(tmp_path / "nowhere", ["a"])


@pytest.mark.parametrize(("names", "pattern"), [(["a"], "x.csv"), ([], "{key}.csv"), (["a"], "*/{key}.csv")])
def test_a_pattern_that_does_not_fit_the_names_is_refused(names: list[str], pattern: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a pattern"):
        found(tmp_path, names, pattern)


@pytest.mark.parametrize(
    ("keys", "pattern", "file"),
    [
        (["2024-01-1", "2024-01-10"], "{key}*.csv", "2024-01-10.csv"),
        (["a-b", "a"], "{key}-*.csv", "a-b-1.csv"),
        (["b", "a-b"], "d/*{key}.csv", "d/a-b.csv"),
        (["a", "a.gz"], "{key}", "a.gz"),
    ],
)
def test_a_file_is_of_one_key(keys: list[str], pattern: str, file: str, tmp_path: Path) -> None:
    put(tmp_path, file)
    assert found(tmp_path, keys[1:], pattern) == [file]
    first, second = keys
    with pytest.raises(ValueError, match=rf"{file} is a file of {first} and of {second}") as raised:
        found(tmp_path, keys, pattern)
    assert not isinstance(raised.value, DropZoneError)


def test_compressed_files_are_read_whole(tmp_path: Path) -> None:
    assert content(put(tmp_path, "a.csv")) == ROWS
    # The first member empty, the header in two.
    members = b"".join(map(gzip.compress, (b"", ROWS[:3], ROWS[3:])))
    assert content(put(tmp_path, "a.csv.gz", members)) == ROWS
    assert content(put(tmp_path, "a.csv.bz2", bz2.compress(ROWS[:3]) + bz2.compress(ROWS[3:]))) == ROWS
    frames = pa.compress(ROWS[:3], "zstd", asbytes=True) + pa.compress(ROWS[3:], "zstd", asbytes=True)
    assert content(put(tmp_path, "a.csv.zst", frames)) == ROWS


@pytest.mark.parametrize("ending", ["gz", "bz2", "zst"])
def test_files_that_are_damaged_are_told(ending: str, tmp_path: Path) -> None:
    pack = {"gz": gzip.compress, "bz2": bz2.compress, "zst": lambda data: pa.compress(data, "zstd", asbytes=True)}[
        ending
    ]
    packed = pack(ROWS)
    for n, damaged in enumerate((ROWS, packed[:-4], packed[: len(packed) // 2], packed + b"junk")):
        with pytest.raises(NotUnpacked, match=ending):
            content(put(tmp_path, f"{n}.csv.{ending}", damaged))


def test_of_a_pattern_s_files_none_is_read_packed_and_unpacked(tmp_path: Path) -> None:
    for name in ("d/part-0.csv", "d/part-0.csv.gz", "d/part-1.csv.gz"):
        put(tmp_path, name)
    told = r"d is there 2 times \(part-0.csv, part-0.csv.gz\)"
    with pytest.raises(DropZoneError, match=told):
        find_files(str(tmp_path), ["d"], "{key}/*.csv")
