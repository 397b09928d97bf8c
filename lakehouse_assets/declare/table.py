"""The declaration of one table: data, without catalog, run or Spark."""

from __future__ import annotations

import hashlib
import inspect
import math
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

import dagster as dg
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from lakehouse_assets.declare.alignment import Alignment
from lakehouse_assets.declare.columns import (
    Column,
    Term,
    find_column,
    partition_spec,
    schema_of,
    sort_order,
    sort_terms,
    types_of,
)
from lakehouse_assets.declare.modes import Overwrite, Tuning, WriteMode
from lakehouse_assets.declare.options import (
    Arrivals,
    Maintenance,
    arrivals_problem,
    care_problem,
    mistyped,
    property_problems,
)
from lakehouse_assets.declare.row_source import RowSource
from lakehouse_assets.declare.sql_conditions import condition_problem
from lakehouse_assets.environment.computes import find_compute
from lakehouse_assets.environment.env_reader import public
from lakehouse_assets.environment.sizes import LEAST_MEMORY_GIB, Size
from lakehouse_assets.errors import DeclarationError
from lakehouse_assets.step.window import MOVE
from lakehouse_assets.wire.code import FUNCTION, declared_code
from lakehouse_assets.wire.work import table_and_ref

if TYPE_CHECKING:
    from pyiceberg.table.sorting import SortOrder

LONGEST_WORKER = timedelta(days=7)
"""The longest time that a worker may run. The collector leaves unreferenced files alone for longer, because a worker
may still report them. EMR Serverless ends its jobs after this time, too."""
AUDIT = "audit"
"""The asset check that shows what the audit found."""
FORMATS = ("parquet", "orc")
"""Not Avro: its files lack statistics, and PyIceberg can't read them to count nulls, so they can't be audited."""
IDENTIFIER = re.compile(r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*")
READ = re.compile(r"\w+(\.\w+)+?(\.(tag|branch)_.+)?")
"""An entry of ``reads``."""


class OnSchemaChange(StrEnum):
    """What a run does if the table's columns differ from the declared ones. No policy rewrites a data file."""

    FAIL = "fail"
    """Fails before a worker starts."""
    IGNORE = "ignore"
    """Keeps the table's columns: values of other columns are not written, undeclared columns get nulls, and values are
    stored as the table's types if Spark allows it."""
    APPEND_NEW_COLUMNS = "append_new_columns"
    """Adds columns, widens types and makes columns nullable as declared, in the run's commit. Undeclared columns stay,
    and get nulls."""
    SYNC_ALL_COLUMNS = "sync_all_columns"
    """As append_new_columns, and drops undeclared columns."""


class OnLayoutChange(StrEnum):
    """What a run does if partitions, sort order, table properties or column docs differ."""

    FAIL = "fail"
    """Fails before a worker starts."""
    EVOLVE = "evolve"
    """Changes the table in the run's commit. Existing files stay as they are."""


@dataclass(frozen=True)
class Table:
    """One Iceberg table as one Dagster asset.

    Raises DeclarationError, naming the table and its first problem.

    Examples:
        >>> import dagster as dg
        >>> from lakehouse_assets import Table, column
        >>> orders = Table(
        ...     identifier="shop.orders",
        ...     columns=[column("day", "date", required=True), column("amount", "decimal(9,2)", "Euros")],
        ...     step="shop.steps:orders",
        ...     partitions=dg.DailyPartitionsDefinition(start_date="2026-01-01"),
        ...     partitioned_by=["day"],
        ... )
        >>> orders.key.to_user_string()
        'shop/orders'
    """

    identifier: str
    """``namespace.table`` in the catalog ``lake``; also the asset key."""
    columns: Sequence[Column]
    """Its columns, each a ``column(…)``, in order."""
    step: str = ""
    """What computes the rows: a function ``module:function``, from ``(spark, window)`` to a DataFrame, or a file with a
    query beside the declaring module, such as ``orders.sql``; ``package:path.sql`` is one elsewhere. Without it, a
    table with a source gets the source's rows unchanged."""
    partitions: dg.PartitionsDefinition | None = None
    """Dagster's partitions; None: the whole table is one unit. If a run owns its partitions (Overwrite, Merge by
    partition), each must be a whole number of Iceberg partitions; else they only select what the step reads."""
    partitioned_by: Sequence[str] = ()
    """Terms in Iceberg's DDL: ``flight_date``, ``day(observed_at)``, ``bucket(16, id)``."""
    sorted_by: Sequence[str] = ()
    """Terms in Iceberg's DDL, as in ``partitioned_by``."""
    partitions_per_worker: int | None = None
    """The most partitions for one worker; None for all of a run."""
    write_mode: WriteMode = field(default_factory=Overwrite)
    """How a run changes the table."""
    on_schema_change: OnSchemaChange = OnSchemaChange.FAIL
    """What a run does if the catalog's table has other columns."""
    allow_drop: Sequence[str] = ()
    """Columns with values that ``sync_all_columns`` may drop; parts of nested columns with dots."""
    on_layout_change: OnLayoutChange = OnLayoutChange.FAIL
    """What a run does if partitions, sort order, properties or docs differ."""
    unique: Sequence[str] = ()
    """Columns that together are unique within an Iceberg partition."""
    checks: Mapping[str, str] = field(default_factory=dict)
    """Conditions that no row may fail, by name: in SQL, such as ``{"no negative distance": "distance >= 0"}``, or
    ``module:function``, which returns one as a Spark Column. Null does not fail."""
    allow_empty: bool = False
    """Whether a partition may end up without rows."""
    publish_others: bool = False
    """Whether a run publishes its good partitions if others fail."""
    tuning: Tuning = field(default_factory=Tuning)
    """How files are written and planned."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Other Iceberg table properties; unreadable values of common ones are refused."""
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    """Spark settings for this table's workers only; no secrets."""
    deps: Sequence[dg.AssetDep | dg.AssetKey | dg.AssetSpec | dg.AssetsDefinition | str | Sequence[str]] = ()
    """Upstream asset keys or AssetDep (with a partition mapping if the partitions differ)."""
    reads: Sequence[str] = ()
    """Iceberg tables that the step reads in addition to ``deps``, such as other teams': ``finance.rates``, or
    ``finance.rates.tag_2026`` and ``finance.rates.branch_audit`` for a tag or branch."""
    source: RowSource | None = None
    """The source of the table's rows, a KafkaTopic or a PostgresTable; each run moves what came since the last."""
    description: str = ""
    """Markdown text for the UI; without it, the step's docstring."""
    owners: Sequence[str] = ()
    """Dagster's owners, such as ``team:flight-data``."""
    kinds: Set[str] | Sequence[str] = frozenset()
    """Dagster's kinds, in addition to ``iceberg`` and ``pyspark``."""
    compute: str | None = None
    """Where the table's workers run, instead of LAKEHOUSE_COMPUTE."""
    size: Size = field(default_factory=Size)
    """The resources of each worker."""
    automation: dg.AutomationCondition[dg.AssetKey] | None = None
    """When Dagster materializes the table automatically."""
    retry_policy: dg.RetryPolicy | None = None
    """How often a failed run is retried, each time only for the chunks without a receipt."""
    worker_timeout: timedelta | None = None
    """How long one worker may run, without its wait for a machine; 7 days at most and by default."""
    maintenance: Maintenance = field(default_factory=Maintenance)
    """How the table is kept fast."""
    arrivals: Arrivals | None = None
    """The objects whose arrival requests the table's partitions; None: no object does."""

    def __post_init__(self) -> None:
        if self.source is not None and not self.step:
            # The instance is frozen.
            object.__setattr__(self, "step", MOVE)
        try:
            for found in mistyped(self):  # first, so that the others can rely on types
                raise ValueError(found)
            if self.step.endswith(".sql") and ":" not in self.step:
                object.__setattr__(self, "step", f"{_declaring_module()}:{self.step}")
            self._check_columns()
            self._check_options()
            for found in (*self.write_mode.problems(self), *self.tuning.problems(self), *self._source_problems()):
                raise ValueError(found)
            self._check_ignored_options()
            for name, check in self.checks.items():
                is_sql = not FUNCTION.fullmatch(check)
                if is_sql and (problem := condition_problem(check, [c.name for c in self.columns])):
                    raise ValueError(f"the check {name!r} ({check}) can't be evaluated: {problem}")
            self.code_version  # noqa: B018  so that terms and code that can't be read are refused at load
        except (ValueError, ImportError) as error:
            raise DeclarationError(f"table {self.identifier!r}: {error}") from error
        self.alignment  # noqa: B018  so that what does not line up is refused at load
        if self.arrivals is not None:
            names = [part.name for part in self.alignment.parts]
            twice = (
                "with arrivals, a message may come twice, and this Append would add its rows again: declare "
                "Append(dedup_on=…), Merge or Overwrite"
            )
            if problem := arrivals_problem(self.arrivals, names) or (twice if self.write_mode.adds_again else None):
                raise DeclarationError(f"table {self.identifier!r}: {problem}")

    def __hash__(self) -> int:
        """Hashes the identifier: fields such as ``checks`` have no hash."""
        return hash(self.identifier)

    def _check_columns(self) -> None:
        if not IDENTIFIER.fullmatch(self.identifier):
            raise ValueError("the identifier is not of the form namespace.table in lower-case letters, digits and _")
        for name in self.reads:
            if not READ.fullmatch(name):
                raise ValueError(
                    f"reads names {name!r}, which is not of the form namespace.table, optionally followed by "
                    ".tag_<name> or .branch_<name>"
                )
        if self.allow_drop and self.on_schema_change != OnSchemaChange.SYNC_ALL_COLUMNS:
            raise ValueError('allow_drop has no effect without on_schema_change="sync_all_columns": leave it out')
        if both := sorted({*self.allow_drop} & {*self.schema.column_names}):
            raise ValueError(f"allow_drop names {', '.join(both)}, which is declared: leave out one of the two")
        for name in self.unique:
            if not find_column(self.schema, name, "unique").field_type.is_primitive:
                raise ValueError(f"unique names {name!r}, which has a nested type: such values can't be compared")

    def _check_options(self) -> None:
        if self.partitions_per_worker is not None and self.partitions_per_worker < 1:
            raise ValueError(f"partitions_per_worker is {self.partitions_per_worker}, it must be 1 or more")
        if (version := self.properties.get("format-version", "2")) != "2":
            raise ValueError(f"format-version {version}: PyIceberg 0.12 writes only manifests of version 2")
        if (written := self.properties.get("write.format.default", "parquet").lower()) not in FORMATS:
            raise ValueError(
                f"write.format.default {written}: its files can't be audited, because PyIceberg 0.12 reads only "
                f"{' and '.join(FORMATS)}"
            )
        for found in property_problems(self.properties):
            raise ValueError(found)
        if secrets := self.spark_conf.keys() - public(self.spark_conf).keys():
            names = ", ".join(sorted(secrets))
            raise ValueError(f"spark_conf has {names}: put secrets in the workers' environment, not in code")
        if self.compute is not None:
            # Raises for a name that no compute has.
            find_compute(self.compute)
        for name, value in vars(self.size).items():
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"size has {name}={value!r}, it must be a number above 0")
        if (memory := self.size.memory_gib) is not None and memory < LEAST_MEMORY_GIB:
            raise ValueError(f"size has memory_gib={memory:g}, but a worker needs at least {LEAST_MEMORY_GIB} GiB")
        timeout = self.worker_timeout
        if timeout is not None and timeout <= timedelta(0):
            raise ValueError(f"worker_timeout is {timeout}, it must be above 0")
        if timeout is not None and timeout > LONGEST_WORKER:
            raise ValueError(
                f"worker_timeout is {timeout}, it must be at most {LONGEST_WORKER.days} days: files that a worker "
                "wrote and nothing refers to are collected some time after that"
            )
        if self.retry_policy is not None:
            retries, delay = self.retry_policy.max_retries, self.retry_policy.delay or 0
            if retries < 0:
                raise ValueError(f"retry_policy has max_retries={retries}, it must be 0 or more")
            if not 0 <= delay < math.inf:
                raise ValueError(f"retry_policy has delay={delay}, it must be 0 or more seconds")
        if problem := care_problem(self.maintenance):
            raise ValueError(problem)
        for name in self.maintenance.zorder:
            find_column(self.schema, name, "maintenance.zorder")

    def _source_problems(self) -> Iterator[str]:
        """Yields problems of the source; without one, of a step that is missing."""
        if self.source is None:
            if not self.step:
                yield "it has no step: name the function that computes its rows, or a source to move them from"
            return
        if self.partitions is not None:
            yield (
                "a table with a source can't have Dagster partitions, because each run moves what arrived since the "
                "last one"
            )
        yield from self.source.problems(types_of(self.schema), self.write_mode)
        for option in ("floor", "ceiling"):
            if getattr(self.source, option) < 1:
                yield f"source has {option}={getattr(self.source, option)}, it must be a whole number of 1 or more"

    def _check_ignored_options(self) -> None:
        """Raises ValueError for an option that the write mode ignores."""
        mode, name = self.write_mode, type(self.write_mode).__name__
        if self.allow_empty and not mode.replaces:
            raise ValueError(f"allow_empty has no effect with {name}, whose runs may always be empty: leave it out")
        for option in ("partitions_per_worker", "publish_others"):
            if getattr(self, option) and not mode.splits:
                raise ValueError(
                    f"{option} has no effect with this {name}, because one worker does the whole run: leave it out. "
                    "Only runs of Overwrite(), Append() without dedup_on and Merge(by_partition=True) are split "
                    "between workers"
                )

    @property
    def worker_limit(self) -> timedelta:
        """How long a worker may run: ``worker_timeout`` or LONGEST_WORKER."""
        return self.worker_timeout or LONGEST_WORKER

    @property
    def key(self) -> dg.AssetKey:
        """The asset's key."""
        return dg.AssetKey(self.identifier.split("."))

    @property
    def domain(self) -> str:
        """The domain's name."""
        return self.identifier.partition(".")[0]

    @property
    def source_key(self) -> dg.AssetKey | None:
        """The key of the asset that stands for its source; None without a source."""
        return dg.AssetKey(self.source.name.split(":")) if self.source is not None else None

    @property
    def dep_names(self) -> list[str]:
        """The identifiers of its deps; some may be assets that are not tables."""
        return [".".join(dg.AssetDep.from_coercible(dep).asset_key.path) for dep in self.deps]

    @property
    def inputs(self) -> set[str]:
        """The identifiers of all tables that its step may read, and those of deps that are not tables."""
        return {*self.dep_names, *(table_and_ref(name)[0] for name in self.reads)}

    @cached_property
    def schema(self) -> Schema:
        """The Iceberg schema. Raises ValueError for columns that can't form one."""
        return schema_of(self.columns)

    @cached_property
    def spec(self) -> PartitionSpec:
        """The partitions that ``partitioned_by`` declares. Raises ValueError for unusable terms."""
        return partition_spec(self.partitioned_by, self.schema)

    @cached_property
    def order(self) -> SortOrder:
        """The Iceberg sort order."""
        return sort_order(self.sort_terms)

    @cached_property
    def sort_terms(self) -> list[Term]:
        """The terms of ``sorted_by``. Raises ValueError for unreadable terms."""
        return sort_terms(self.sorted_by, self.schema)

    @cached_property
    def alignment(self) -> Alignment:
        """How Dagster's partitions map to Iceberg's; if runs don't own them, they only select input.

        Raises DeclarationError for unusable partitions.
        """
        if self.write_mode.owns_partitions:
            return Alignment.of(self.identifier, self.schema, self.spec, self.partitions)
        return Alignment.of_input(self.identifier, self.partitions)

    @cached_property
    def all_properties(self) -> Mapping[str, str]:
        """Declared properties and those of ``tuning``."""
        return {**self.tuning.properties(), **self.properties}

    @property
    def replaces_all(self) -> bool:
        """Whether each run replaces all rows of the table."""
        return self.partitions is None and self.write_mode.replaces

    @cached_property
    def code_version(self) -> str:
        """The hashes ``<code>-<declaration>``, 8 hex digits each.

        The first covers the code that the step and the checks reach (wire/code.py), the second the declaration of the
        rows and how they are written. If either changes, staged rows are staged again.
        """
        order = [(term.column.field_id, term.transform) for term in self.sort_terms]
        shape = (self.schema, self.spec, order, tuple(self.unique), self.write_mode, *sorted(self.checks.items()))
        options = (sorted(self.all_properties.items()), sorted(self.spark_conf.items()))
        code = declared_code(self.step, self.checks.values())
        return "-".join(
            hashlib.sha256(repr(half).encode()).hexdigest()[:8] for half in (code, (self.step, shape, options))
        )


def _declaring_module() -> str:
    """Returns the package, or the module without one, whose code makes a table."""
    frame = inspect.currentframe()
    assert frame
    while frame.f_back and frame.f_globals["__name__"] in (__name__, "dataclasses"):
        frame = frame.f_back
    found: str = frame.f_globals.get("__package__") or frame.f_globals["__name__"]
    return found
