"""Checks how long the paths of a partition's files become, and whether the table's storage takes them.

Nothing is read or written. Which keys make which partitions is in region.py.
"""

from __future__ import annotations

from urllib.parse import quote_plus, urlsplit

from pyiceberg.table import Table, TableProperties
from pyiceberg.utils.properties import property_as_bool

from lakehouse_assets.declare.region import Region
from lakehouse_assets.errors import PartitionRefused

FOLDER_BYTES = 255
"""The most bytes of one folder's name: NAME_MAX of Linux's file systems, and HDFS's default."""
PATH_BYTES = 1024
"""The most bytes of an object's key (https://docs.aws.amazon.com/AmazonS3/latest/userguide/object-keys.html)."""
FILE_BYTES = 120
"""The most bytes of a path's ``/data/``, the folders of an object store's layout and the file name, together."""
FIELD_BYTES = 40
"""The most bytes of a partition value that is no key, such as a time; strings may be longer."""
# Characters by which a person recognises a key.
KEY_SHOWN = 40


def check_paths(identifier: str, region: Region, target: Table) -> None:
    """Raises PartitionRefused, naming the table and the key, if a key's files have longer paths than storage takes.

    Iceberg's writers put each file below one folder ``<field>=<URL-encoded value>`` for each partition field.
    """
    properties, spec = target.properties, target.spec()
    if property_as_bool(properties, TableProperties.OBJECT_STORE_ENABLED, False) and not property_as_bool(
        properties, TableProperties.WRITE_OBJECT_STORE_PARTITIONED_PATHS, True
    ):
        return  # paths do not contain the partition
    location = urlsplit(properties.get(TableProperties.WRITE_DATA_PATH) or target.location())
    folders = location.scheme in ("", "file", "hdfs")
    besides = len(location.path.encode()) + FILE_BYTES
    limit, limited = (FOLDER_BYTES, "a folder's name") if folders else (PATH_BYTES, "a path in an object store")
    for cell in region.cells:  # a combination of the keys that are values
        keys = {axis.position: axis.keys[value] for axis, value in zip(region.values, cell, strict=True)}
        values = (_encoded(keys[n]) if n in keys else "-" * FIELD_BYTES for n in range(len(spec.fields)))
        names = [f"{_encoded(field.name)}={value}" for field, value in zip(spec.fields, values, strict=True)]
        longest = max(map(len, names), default=0) if folders else besides + len("/".join(names))
        if keys and longest > limit:
            key = max(keys.values(), key=len)
            raise PartitionRefused(
                f"table {identifier!r}: the key {key[:KEY_SHOWN]!r}… of {len(key)} characters is too long: paths of "
                f"its files contain it URL-encoded, which makes {longest} bytes, and {limited} has {limit} at most; "
                "use shorter keys"
            )


def _encoded(text: str) -> str:
    """Encodes the text as Java's URLEncoder does, in UTF-8."""
    return quote_plus(text, safe="*").replace("~", "%7E")
