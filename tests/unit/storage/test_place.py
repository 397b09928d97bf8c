"""One file has one key however it is written, different files have different ones, and nothing is decoded."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO

from lakehouse_assets.errors import UnknownStorage
from lakehouse_assets.storage.place import Place, StorageKind, aliases, case_folded, place_of

KEYS = st.text(st.sampled_from("ab/%2F#?. \n;+é\u0301Ä"), min_size=1, max_size=12)
COMPOSED, DECOMPOSED = "/wh/caf\u00e9", "/wh/cafe\u0301"


def s3(key: str, bucket: str = "lake") -> Place:
    return Place(StorageKind.S3, bucket, key)


def file(path: str) -> Place:
    return Place(StorageKind.FILE, "", path)


@pytest.mark.parametrize("location", ["s3://lake/a/b", "s3a://lake/a/b", "s3n://lake/a/b", "S3://lake/a/b"])
def test_aliases_of_a_scheme_are_one_place(location: str) -> None:
    assert place_of(location) == s3("a/b")


@pytest.mark.parametrize("location", ["/wh/t", "file:/wh/t", "file:///wh/t", "file://localhost/wh/t"])
def test_a_local_file_is_one_place(location: str) -> None:
    assert place_of(location) == file("/wh/t")


@pytest.mark.parametrize(
    "location", ["gs://lake/a", "wh/t", "", "file://elsewhere/wh/t", "s3:a", "s3:///a", "hdfs://a/b"]
)
def test_what_is_no_place_of_ours_is_refused(location: str) -> None:
    with pytest.raises(UnknownStorage, match="is no place whose files can be collected"):
        place_of(location)


@settings(max_examples=200, deadline=None)
@given(KEYS)
def test_nothing_is_decoded_and_a_place_comes_back_from_its_location(key: str) -> None:
    for place in (s3(key), file(f"/{key}")):
        assert place_of(place.location) == place
        assert place.key.removeprefix("/").endswith(key.removeprefix("/"))


def test_bytes_that_are_no_text_stay_what_they_are() -> None:
    name = os.fsdecode(b"/wh/\xff\xfe")
    assert place_of(name).raw.endswith(b"/wh/\xff\xfe")


@settings(max_examples=200, deadline=None)
@given(KEYS, KEYS)
def test_different_keys_are_different_bytes(one: str, other: str) -> None:
    assert (s3(one).raw == s3(other).raw) == (one == other)


def test_the_bucket_and_the_kind_are_part_of_the_key() -> None:
    assert len({s3("b/c", "a").raw, s3("c", "a/b").raw, s3("/b").raw, file("/b").raw}) == 4


@pytest.mark.parametrize("key", ["a//b", "a/../b", "a/./b", "a/", "/a", "."])
def test_names_that_clients_differ_about_are_ambiguous(key: str) -> None:
    assert s3(key).is_ambiguous
    assert file(f"/x/{key}").is_ambiguous


@pytest.mark.parametrize("key", ["a/b", "a/..b", "a/%2e%2e/b", "a/b.", "a#/b"])
def test_other_names_are_not(key: str) -> None:
    assert not s3(key).is_ambiguous
    assert not file(f"/{key}").is_ambiguous


def test_what_lies_within_is_told_by_whole_parts() -> None:
    assert s3("a/b/c").is_within(s3("a/b"))
    assert s3("a/b").is_within(s3("a/b/"))
    assert s3("a").is_within(s3(""))
    assert file("/a/b").is_within(file("/"))
    assert not s3("a/bc").is_within(s3("a/b"))
    assert not s3("a/b").is_within(s3("a/b", "other"))
    assert not s3("a/b").is_within(s3("a/b/c"))


def test_a_child_lies_within() -> None:
    assert s3("").child("a") == s3("a")
    assert s3("a/").child("b") == s3("a/b")
    assert file("/").child("b") == file("/b")


@pytest.mark.parametrize(
    "location",
    [
        "s3://lake/a/keep#1.parquet",
        "s3://lake/a/q?x",
        "s3a://lake/a\nb/c",
        "/wh/b/../a//b",
        "file:///wh/a#b",
    ],
)
def test_what_pyiceberg_opens_by_a_location_is_one_of_its_meanings(location: str) -> None:
    _, _, path = PyArrowFileIO.parse_location(location)
    opened = file(path) if "lake" not in location else s3(path.removeprefix("lake/"))
    assert {opened, place_of(location)} <= aliases(location)
    assert opened != place_of(location), "else this tests nothing"


@settings(max_examples=300, deadline=None)
@given(KEYS)
def test_whatever_pyiceberg_opens_is_one_of_a_locations_meanings(key: str) -> None:
    _, netloc, path = PyArrowFileIO.parse_location(f"s3://lake/{key}")
    assert s3(path.removeprefix("lake/")) in aliases(f"s3://lake/{key}"), netloc


def test_parts_that_clients_drop_are_dropped_in_one_meaning() -> None:
    assert aliases("s3://lake/a//b/./c") == {s3("a//b/./c"), s3("a/b/c")}
    assert aliases("file:///wh//t/../u") == {file("/wh//t/../u"), file("/wh/u")}
    assert aliases("s3://lake/a/b") == {s3("a/b")}


def test_names_of_one_case_or_normal_form_have_one_folded_name() -> None:
    for same in (["/wh/a", "/wh/A"], [COMPOSED, DECOMPOSED], ["/wh/\u212a", "/wh/k"], ["/wh/ß", "/wh/SS"]):
        assert len({case_folded(file(name)) for name in same}) == 1
    assert case_folded(file("/\u1f80")) == case_folded(file("/\u03b1\u0345\u0313")), (
        "equal by Unicode, in another order"
    )
    assert case_folded(file("/wh/a")) != case_folded(file("/wh/b"))
    assert case_folded(s3("x", "a")) != case_folded(s3("x", "A"))
