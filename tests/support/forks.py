"""A small daily table, and forks of it staged by PyIceberg in place of a Spark worker.
No mocks: forks, files and catalogs are real; what only Spark does is tested with Spark (marker spark)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, ClassVar
from uuid import uuid4

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField, StringType

from lakehouse_assets.commit.change import Change
from lakehouse_assets.commit.fork import write_fork_base
from lakehouse_assets.commit.publish import Published, publish
from lakehouse_assets.commit.staged import StagedChunk, read_all
from lakehouse_assets.commit.tokens import TOKEN, RunToken
from lakehouse_assets.declare.alignment import Alignment
from lakehouse_assets.declare.region import Region
from lakehouse_assets.step.window import Window
from lakehouse_assets.wire.receipts import Receipt
from tests.support import light_stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = Schema(
    NestedField(1, "day", DateType(), required=True),
    NestedField(2, "carrier", StringType()),
    NestedField(3, "flights", LongType()),
)
SPEC = PartitionSpec(PartitionField(source_id=1, field_id=1000, transform=IdentityTransform(), name="day"))
ARROW = pa.schema([pa.field("day", pa.date32(), nullable=False), ("carrier", pa.string()), ("flights", pa.int64())])
DAILY = dg.DailyPartitionsDefinition("2013-01-01")


def daily_rows(*days: str, carrier: str = "AA", each: int = 1) -> pa.Table:
    """``each`` rows for every day, flights counting up from 0."""
    rows = [{"day": date.fromisoformat(d), "carrier": carrier, "flights": i} for d in days for i in range(each)]
    return pa.Table.from_pylist(rows, schema=ARROW)


def region(*days: str) -> Region:
    """The region of a daily table that these days own."""
    return Alignment.of("nyc.flights", SCHEMA, SPEC, DAILY).region(list(days))


def flights(spark: SparkSession, window: Window) -> DataFrame:
    """A step: two rows a day, none in July."""
    days = ",".join(f"DATE'{key}'" for key in window.keys)
    return spark.sql(f"""
        SELECT day, concat('A', n) AS carrier, n AS flights
        FROM (SELECT explode(array({days})) AS day), range(2) AS t(n) WHERE month(day) <> 7
    """)


class CountingIO(PyArrowFileIO):
    """A FileIO that knows which manifests were read, in all its instances."""

    manifests_read: ClassVar[list[str]] = []

    def new_input(self, location: str) -> PyArrowFile:
        if location.endswith(".avro") and "/snap-" not in location:
            self.manifests_read.append(location)
        return super().new_input(location)


class RefusingIO(PyArrowFileIO):
    """A FileIO that may refuse data files, as S3 does with credentials that were vended for another location."""

    refuses: ClassVar[bool] = False

    def new_input(self, location: str) -> PyArrowFile:
        if self.refuses and location.endswith(".parquet"):
            raise PermissionError(f"AWS Error ACCESS_DENIED during HeadObject operation: {location}")
        return super().new_input(location)


@dataclass
class Daily:
    """One daily table under a name of its own in a catalog that tests share."""

    catalog: Catalog
    identifier: str

    @classmethod
    def create(cls, catalog: Catalog, properties: dict[str, str] | None = None) -> Daily:
        catalog.create_namespace_if_not_exists("nyc")
        identifier = f"nyc.flights_{uuid4().hex[:8]}"
        catalog.create_table(identifier, SCHEMA, partition_spec=SPEC, properties=properties or {})
        return cls(catalog, identifier)

    @property
    def table(self) -> Table:
        return self.catalog.load_table(self.identifier)

    def append(self, rows: pa.Table) -> None:
        """A commit of somebody else."""
        self.table.append(rows)

    def add_file(self, rows: pa.Table) -> None:
        """A commit of somebody else: one file, whose rows share a partition of the spec of now."""
        table = self.table
        path = table.location_provider().new_data_location(f"{uuid4()}.parquet")
        with table.io.new_output(path).create() as stream:
            pq.write_table(rows, stream)
        table.add_files([path])

    def stage(self, token: str, chunk: int, days: Sequence[str], rows: pa.Table | None) -> StagedChunk:
        """Stage one chunk; no rows: the fork stays as it was registered."""
        (staged,) = read_all(self.table.io.properties, [self.receipt(token, chunk, days, rows)])
        return staged

    def receipt(self, token: str, chunk: int, days: Sequence[str], rows: pa.Table | None) -> Receipt:
        target = self.table
        base = write_fork_base(target, token).location
        fork = light_stage.register(base, target.io.properties)
        if rows is not None:
            fork.append(rows, snapshot_properties={TOKEN: token})
        rows_written = rows.num_rows if rows is not None else 0
        return light_stage.receipt(self.identifier, token, days, base, fork, rows_written, chunk)

    def publish(
        self, token: str, days: Sequence[str], *chunks: StagedChunk, created: datetime | None = None
    ) -> Published:
        """created: of the run; now where it does not matter."""
        run = RunToken(token, created or datetime.now(UTC))
        change = Change(region(*days), chunks)
        return publish(self.catalog, self.identifier, change, run)

    def last_change(self, what: str) -> tuple[int, int]:
        """How many ``records`` or ``data-files`` the newest snapshot added and removed, by its summary."""
        summary = self.table.current_snapshot().summary
        return int(summary[f"added-{what}"] or 0), int(summary[f"deleted-{what}"] or 0)

    def counts(self) -> dict[str, int]:
        """Rows by day."""
        days = self.table.scan(selected_fields=("day",)).to_arrow()["day"].to_pylist()
        return {str(day): days.count(day) for day in sorted(set(days))}
