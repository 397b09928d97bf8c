"""Writes manifests of delete files that other engines can read.

Which delete files apply to which data files is decided in deletes.py.
"""

from __future__ import annotations

from pyiceberg.manifest import ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.typedef import TableVersion
from pyiceberg.types import IntegerType, ListType, NestedField, StructType

from lakehouse_assets.commit.avro_blocks import BlockManifestWriter

EQUALITY_IDS = NestedField(
    135, "equality_ids", ListType(element_id=136, element_type=IntegerType(), element_required=True), required=False
)
"""The field as the format defines it (https://iceberg.apache.org/spec/#manifests). PyIceberg 0.12 writes longs, and
Java's readers then fail with a ClassCastException: nobody but PyIceberg could read the table."""


class DeleteManifestWriter(BlockManifestWriter):
    """PyIceberg's writer, made to write manifests of delete files."""

    def content(self) -> ManifestContent:
        """Returns that the manifest lists delete files."""
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}

    def _with_partition(self, format_version: TableVersion) -> Schema:
        entry = super()._with_partition(format_version)
        return Schema(*[_with_int_ids(field) if field.name == "data_file" else field for field in entry.fields])


def _with_int_ids(data_file: NestedField) -> NestedField:
    assert isinstance(data_file.field_type, StructType)
    same = EQUALITY_IDS.field_id
    fields = [EQUALITY_IDS if field.field_id == same else field for field in data_file.field_type.fields]
    return NestedField(data_file.field_id, data_file.name, StructType(*fields), required=data_file.required)
