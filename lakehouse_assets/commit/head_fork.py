"""Writes the fork base whose one snapshot is the table's head, cut down to the files to be rewritten or compared.

Fork bases without rows, or with all of the table's, are in fork.py; what a rewrite made of one is read in fork_diff.py.

It is cut down so that Spark can be told to rewrite everything: no filter has to name partitions of transforms, nulls or
old specs, a worker can't touch what is not its own, the proof reads nothing else, and no worker reads the manifests of
a large table. The base keeps its id and sequence numbers, so that deletes apply as they do in the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from pyiceberg.io import OutputFile
from pyiceberg.manifest import DataFileContent, ManifestEntry, ManifestFile, write_manifest_list
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary

from lakehouse_assets.commit.fork import FORMAT_VERSION, ForkBase, fork_name, identity_of, with_only, written_base
from lakehouse_assets.commit.landing_rules import Base
from lakehouse_assets.commit.manifest_writer import by_kind, existing, write_manifest

CODEC: Final = "deflate"


def write_head_fork(table: Table, base: Base, token: str, entries: Sequence[ManifestEntry]) -> ForkBase:
    """Writes a metadata file whose only snapshot is the base with these entries.

    entries: live at the base: the data files to be rewritten or compared, and the delete files that may apply to them.
    Idempotent: the same files of the same base have one fork base, written once. The files lie in the folder of the
    table's metadata, since storage like S3 Tables allows no folders below it.

    Raises PublishRefused for a format version other than 2, ValueError for a token that can't be in a file name.
    """
    paths = sorted(entry.data_file.file_path for entry in entries)
    name = fork_name(table, token, (*identity_of(with_only(base.metadata, base.snapshot)), *paths))
    # "00000-" is where Iceberg's Java catalogs look for the version, and log a stack trace if there is none.
    place = table.location_provider().new_metadata_location
    location = place(f"00000{name}.metadata.json")
    if written_base(table.io, location) is None:  # it is written last
        manifests = [
            write_manifest(
                table.io.new_output(place(f"m{n}{name}.avro")),
                base.metadata,
                kind,
                base.snapshot.snapshot_id,
                existing(listed),
            )
            for n, (kind, listed) in enumerate(by_kind(entries))
        ]
        cut = base.snapshot.model_copy(
            update={
                "parent_snapshot_id": None,
                "manifest_list": _write_list(table.io.new_output(place(f"snap{name}.avro")), base, manifests),
                "summary": _summary(entries),
                "schema_id": base.metadata.current_schema_id,
            }
        )
        metadata = with_only(base.metadata, cut)
        ToOutputFile.table_metadata(metadata, table.io.new_output(location), overwrite=True)
    return ForkBase(location, base.snapshot.snapshot_id)


def _write_list(output: OutputFile, base: Base, manifests: list[ManifestFile]) -> str:
    with write_manifest_list(
        FORMAT_VERSION, output, base.snapshot.snapshot_id, None, base.sequence_number, CODEC
    ) as writer:
        writer.add_manifests(manifests)
    return output.location


def _summary(entries: Iterable[ManifestEntry]) -> Summary:
    """Returns a summary with the totals that Spark's register_table returns: it fails where there are none."""
    data = [entry.data_file for entry in entries if entry.data_file.content is DataFileContent.DATA]
    totals = {"total-data-files": str(len(data)), "total-records": str(sum(file.record_count for file in data))}
    return Summary(Operation.APPEND, **totals)
