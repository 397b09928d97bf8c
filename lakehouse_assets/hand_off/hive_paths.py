"""Says what a partition's value is in Hive's paths, and reads it back: ``day=2026-01-31/shop=a%2Fb``.

Which columns may be in a path is hive_types.py's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from lakehouse_assets.errors import HandOffRefused

if TYPE_CHECKING:
    import pyarrow as pa

NULL = "__HIVE_DEFAULT_PARTITION__"
"""What stands for null in a path, and in a partition's values in Glue (Hive's hive.exec.default.partition.name)."""
# org.apache.hadoop.hive.common.FileUtils.charToEscape; all other characters stay as they are, é for instance: Hive
# decodes byte by byte what pyarrow's own encoding makes of it, and reads another text.
ESCAPED = {chr(code) for code in range(1, 0x20)} | {*"\"#%'*/:=?\\{}[]^\x7f"}


def segment(name: str, value: Any) -> str:
    """Returns the part of a path that says the value of a column, ``name=value``. value: None for null."""
    text = NULL if value is None else "".join(f"%{ord(c):02X}" if c in ESCAPED else c for c in str(value))
    return f"{name}={text}"


def values_of(path: str) -> tuple[str, ...]:
    """Returns the values in the folders of a relative path, as Glue names them: unescaped, NULL for null."""
    folders = path.split("/")[:-1]
    return tuple(unquote(folder.partition("=")[2]) for folder in folders)


def segments(name: str, column: pa.Array) -> pa.Array:
    """Returns the parts of paths for all values of a column.

    Raises HandOffRefused for texts that would be read back as null, or cut.
    """
    import pyarrow as pa

    encoded = column.dictionary_encode()
    values = encoded.dictionary.to_pylist()
    if lost := sorted({"", NULL} & {*values}):
        raise HandOffRefused(
            f"column {name} holds {lost[0]!r}, which Hive reads as null in a path; leave it out of partitioned_by"
        )
    if cut := sorted(value for value in values if isinstance(value, str) and "\0" in value):
        raise HandOffRefused(
            f"column {name} holds {cut[0]!r}, whose character NUL no path can hold; leave it out of partitioned_by"
        )
    named = pa.array([*(segment(name, value) for value in values), segment(name, None)], pa.string())
    return named.take(encoded.indices.fill_null(len(values)))
