"""Finds values of Iceberg table properties with which each run would fail: no number, or none of the words expected.

Properties that are not named here are left as they are; what tuning declares is checked in tuning.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

# https://iceberg.apache.org/docs/1.12.0/configuration/
MODES, LEVELS = ("none", "hash", "range"), ("serializable", "snapshot")
PLANNING = ("auto", "local", "distributed")
WORDS = {
    **{f"write.{of}distribution-mode": MODES for of in ("", "delete.", "update.", "merge.")},
    **{f"write.{of}.isolation-level": LEVELS for of in ("delete", "update", "merge")},
    **{f"write.{of}.mode": ("copy-on-write", "merge-on-read") for of in ("delete", "update")},
    **{f"read.{of}-planning-mode": PLANNING for of in ("data", "delete")},
    "write.parquet.compression-codec": ("zstd", "brotli", "lz4", "lz4_raw", "lzo", "gzip", "snappy", "uncompressed"),
    "write.orc.compression-codec": ("zstd", "lz4", "lzo", "zlib", "snappy", "none"),
    "write.metadata.compression-codec": ("none", "gzip"),
}
"""The values that a property may have, by its name. Iceberg takes them in capitals as well."""
NUMBER = re.compile(
    r"write\.(delete\.)?target-file-size-bytes|write\.spark\.advisory-partition-size-bytes"
    r"|write\.(delete\.)?parquet\.(row-group-size-bytes|page-size-bytes|page-row-limit|dict-size-bytes)"
    r"|write\.orc\.(stripe|block)-size-bytes|read\.split\.(target-size|planning-lookback|open-file-cost)"
    r"|write\.metadata\.previous-versions-max|commit\.retry\.num-retries|commit\.manifest\.target-size-bytes"
)


def property_problems(properties: Mapping[str, str]) -> Iterator[str]:
    """Yields a problem for each value that is none of the words known for its property, or no whole number."""
    for name, value in properties.items():
        if name in WORDS and value.lower() not in WORDS[name]:
            yield f"properties has {name}={value!r}, known are {', '.join(WORDS[name])}"
        elif NUMBER.fullmatch(name) and not re.fullmatch(r"[+-]?\d+", value, re.ASCII):
            yield f"properties has {name}={value!r}, it must be a whole number"
