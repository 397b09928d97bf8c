"""Partition values in Hive's paths: there and back, and what would come back as null."""

from __future__ import annotations

from datetime import date

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse_assets.errors import HandOffRefused
from lakehouse_assets.extensions.hand_off.hive import NULL, segment, segments, values_of


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a/b=c", "shop=a%2Fb%3Dc"),
        ("50%", "shop=50%25"),
        ("Köln am Rhein", "shop=Köln am Rhein"),
        (None, f"shop={NULL}"),
        (7, "shop=7"),
        (date(2026, 1, 31), "shop=2026-01-31"),
    ],
)
def test_values_are_escaped_as_hive_escapes_them(value: object, text: str) -> None:
    assert segment("shop", value) == text


@given(
    st.lists(
        st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1),
        min_size=1,
        max_size=3,
    )
)
def test_values_come_back_as_they_were(values: list[str]) -> None:
    path = "/".join(segment(f"c{n}", value) for n, value in enumerate(values))
    assert values_of(f"{path}/part-0.parquet") == tuple(values)


def test_a_column_of_values_becomes_parts_of_paths() -> None:
    found = segments("shop", pa.array(["a", None, "b:c", "a"]))
    assert found.to_pylist() == ["shop=a", f"shop={NULL}", "shop=b%3Ac", "shop=a"]


@pytest.mark.parametrize("lost", ["", NULL])
def test_a_text_that_hive_reads_as_null_is_refused(lost: str) -> None:
    with pytest.raises(HandOffRefused, match=r"column shop contains .* which Hive reads as null"):
        segments("shop", pa.array(["a", lost]))


def test_a_text_that_a_path_would_cut_is_refused() -> None:
    with pytest.raises(HandOffRefused, match=r"column shop contains 'a\\x00b', with a NUL character"):
        segments("shop", pa.array(["a", "a\0b"]))
