"""Tuning: the properties that each option stands for, what wide tables get, and what is refused when a location loads.
What Spark makes of it: integration/test_tuned_tables.py."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_assets.declare.modes import Compression, Distribution, Merge, Planning, Tuning
from lakehouse_assets.errors import DeclarationError
from tests.support.tables import numbers


def test_nothing_is_tuned_unless_it_is_declared() -> None:
    assert numbers().all_properties == {}


def test_each_option_has_its_property() -> None:
    tuning = Tuning(
        distribution=Distribution.NONE,
        merge_distribution=Distribution.RANGE,
        partition_mib=512,
        file_mib=128,
        compression=Compression.ZSTD,
        compression_level=9,
        metrics={"text": "truncate(32)"},
        object_storage=True,
        planning=Planning.DISTRIBUTED,
    )
    merged = {"write_mode": Merge(["n"]), "unique": []}
    assert numbers(tuning=tuning, properties={"owner": "me"}, **merged).all_properties == {
        "write.distribution-mode": "none",
        "write.merge.distribution-mode": "range",
        "write.spark.advisory-partition-size-bytes": str(512 * 2**20),
        "write.target-file-size-bytes": str(128 * 2**20),
        "write.parquet.compression-codec": "zstd",
        "write.parquet.compression-level": "9",
        "write.metadata.metrics.column.text": "truncate(32)",
        "write.object-storage.enabled": "true",
        "read.data-planning-mode": "distributed",
        "read.delete-planning-mode": "distributed",
        "owner": "me",
    }


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"distribution": "hashed"}, "distribution is 'hashed', expected one of none, hash, range"),
        ({"merge_distribution": "hash"}, "merge_distribution, which has no effect with this Overwrite"),
        ({"compression": "lz77"}, "compression is 'lz77', expected one of zstd"),
        ({"compression": "zstd", "compression_level": 23}, "compression_level=23, it must be from 1 to 22"),
        ({"compression": "gzip", "compression_level": 9}, "compression_level=9, .*ZSTD: the other codecs"),
        ({"compression_level": 3}, "compression_level=3, .* with compression=Compression.ZSTD"),
        ({"metrics": ["n"]}, r"metrics is \['n'\], it must be a dict"),
        ({"planning": "far"}, "planning is 'far', expected one of auto"),
        ({"file_mib": 0.5}, "file_mib is 0.5, it must be a whole number"),
        ({"partition_mib": -1}, "partition_mib=-1, it must be 1 or more"),
        ({"object_storage": "yes"}, "object_storage is 'yes', it must be True or False"),
        ({"metrics": {"tex": "full"}}, "metrics for 'tex', but the table has day, n, text"),
        ({"metrics": {"text": None}}, "metrics is {'text': None}, it must be a dict"),
        ({"metrics": {"text": "truncate(0)"}}, r"the metrics 'truncate\(0\)' for text; the possible values are none"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_has_no_meaning_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(DeclarationError, match=f"table 'demo.numbers': tuning( has |\\.){problem}"):
        numbers(tuning=Tuning(**options))


def test_properties_are_text() -> None:
    with pytest.raises(
        DeclarationError, match=r"properties is \{'gc\.enabled': True\}, it must be a dict of the type Mapping"
    ):
        numbers(properties={"gc.enabled": True})


def test_a_property_is_set_in_one_place() -> None:
    name = "write.target-file-size-bytes"
    with pytest.raises(DeclarationError, match=f"{name} is set both by tuning and by properties: leave out one"):
        numbers(tuning=Tuning(file_mib=1), properties={name: "1"})
