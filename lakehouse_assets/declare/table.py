"""The declaration of one table: what it holds, how it is partitioned, what fills it; refused here if it can't work.
No catalog, no run, no Spark: a declaration is data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property

import dagster as dg
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortOrder

from lakehouse_assets.declare import checks
from lakehouse_assets.declare.alignment import Alignment
from lakehouse_assets.declare.columns import Column, schema_of
from lakehouse_assets.declare.modes import Overwrite, WriteMode, is_write_mode
from lakehouse_assets.declare.terms import partition_spec, sort_order
from lakehouse_assets.errors import DeclarationError
from resources.settings import Compute
from resources.sizes import Size


@dataclass(frozen=True)
class Table:
    """One Iceberg table as one Dagster asset.

    identifier: ``namespace.table`` in the catalog ``lake``; also the asset key.
    columns: in order; field ids start at 1.
    step: ``module:function`` with the signature ``(spark, window) -> DataFrame``.
    partitions: the Dagster partitions, or None. Each must be a whole number of Iceberg partitions.
    partitioned_by, sorted_by: terms in Iceberg's DDL: ``flight_date``, ``day(observed_at)``, ``bucket(16, id)``.
    partitions_per_worker: how many partitions reach one worker; None: all partitions of a run.
    write_mode: how a run changes the table (declare/modes.py).
    unique: columns that together are unique within an Iceberg partition.
    allow_empty: whether a partition may come out without rows.
    publish_others: whether a run's good partitions are published when other chunks failed.
    properties: Iceberg table properties. spark_conf: settings for this table's workers only.
    compute: where this table's workers run, in place of LAKEHOUSE_COMPUTE. size: what each of them gets.
    deps: upstream asset keys or AssetDep (with a partition mapping where the partitions differ).
    automation: when Dagster materializes it by itself. retry_policy: how often a failed run is tried again, each time
        only for the chunks without a receipt. worker_timeout: how long one worker may run, not counting the time it
        waits for a machine; None for no limit.

    Raises DeclarationError, naming the table and its first problem.
    """

    identifier: str
    columns: Sequence[Column]
    step: str
    partitions: dg.PartitionsDefinition | None = None
    partitioned_by: Sequence[str] = ()
    sorted_by: Sequence[str] = ()
    partitions_per_worker: int | None = None
    write_mode: WriteMode = field(default_factory=Overwrite)
    unique: Sequence[str] = ()
    allow_empty: bool = False
    publish_others: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    deps: Sequence[dg.AssetDep | dg.AssetKey | Sequence[str]] = ()
    description: str = ""
    owners: Sequence[str] = ()
    kinds: frozenset[str] = frozenset()
    compute: Compute | None = None
    size: Size = field(default_factory=Size)
    automation: dg.AutomationCondition[dg.AssetKey] | None = None
    retry_policy: dg.RetryPolicy | None = None
    worker_timeout: timedelta | None = None

    def __post_init__(self) -> None:
        try:
            self._check()
        except ValueError as error:
            raise DeclarationError(f"table {self.identifier!r}: {error}") from error
        if self.write_mode.needs_alignment:
            self.alignment  # noqa: B018  computed here so that what does not line up is refused at load

    def _check(self) -> None:
        checks.check_identifier(self.identifier)
        checks.check_lists(unique=self.unique, partitioned_by=self.partitioned_by, sorted_by=self.sorted_by)
        checks.check_unique(self.unique, self.schema)
        checks.check_partitions_per_worker(self.partitions_per_worker)
        checks.check_properties(self.properties)
        if not is_write_mode(self.write_mode):
            raise ValueError(f"write_mode is {self.write_mode!r}, it must be a write mode (declare/modes.py)")
        checks.check_spark_conf(self.spark_conf)
        checks.check_compute(self.compute)
        checks.check_size(self.size)
        checks.check_worker_timeout(self.worker_timeout)
        checks.check_step(self.step)
        self.code_version  # noqa: B018  computed here so that terms and code that can't be read are refused at load

    @property
    def key(self) -> dg.AssetKey:
        return dg.AssetKey(self.identifier.split("."))

    @property
    def domain(self) -> str:
        """The name of the domain it belongs to: the first part of its identifier."""
        return self.identifier.partition(".")[0]

    @cached_property
    def schema(self) -> Schema:
        return schema_of(self.columns)

    @cached_property
    def spec(self) -> PartitionSpec:
        return partition_spec(self.partitioned_by, self.schema)

    @cached_property
    def order(self) -> SortOrder:
        return sort_order(self.sorted_by, self.schema)

    @cached_property
    def alignment(self) -> Alignment:
        """How partition keys and Iceberg partitions correspond."""
        return Alignment.of(self.identifier, self.schema, self.spec, self.partitions)

    @cached_property
    def code_version(self) -> str:
        """12 hex digits over the code that the step reaches (step_code.py) and what is declared of the rows."""
        shape = (self.schema, self.spec, self.order, tuple(self.unique), self.write_mode)
        options = (sorted(self.properties.items()), sorted(self.spark_conf.items()))
        declared = repr((self.step, checks.step_hash(self.step), shape, options))
        return hashlib.sha256(declared.encode()).hexdigest()[:12]
