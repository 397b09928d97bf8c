"""The declaration of one table: what it holds, how it is partitioned, what fills it; refused here if it can't work.

A declaration is data: no catalog, no run, no Spark.
"""

from __future__ import annotations

import ast
import hashlib
import math
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, fields
from datetime import timedelta
from difflib import get_close_matches
from functools import cached_property, lru_cache
from inspect import signature
from typing import TYPE_CHECKING, Any, Self

import dagster as dg
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from lakehouse_assets.declare.alignment import Alignment
from lakehouse_assets.declare.arrivals import Arrivals, arrivals_problem
from lakehouse_assets.declare.care import Maintenance, care_problem
from lakehouse_assets.declare.change_policies import OnLayoutChange, OnSchemaChange
from lakehouse_assets.declare.columns import Column, find_column, schema_of
from lakehouse_assets.declare.modes import Overwrite, Rule, WriteMode
from lakehouse_assets.declare.option_types import mistyped
from lakehouse_assets.declare.property_values import property_problems
from lakehouse_assets.declare.sql_conditions import condition_problem
from lakehouse_assets.declare.terms import Term, partition_spec, sort_order, sort_terms
from lakehouse_assets.declare.tuning import Tuning
from lakehouse_assets.errors import DeclarationError
from lakehouse_assets.protocol.module_source import read_module
from lakehouse_assets.protocol.step_code import FUNCTION, code_hash, declared_code
from resources.secrets import public
from resources.settings import Compute
from resources.sizes import LEAST_MEMORY_GIB, Size

if TYPE_CHECKING:
    from pyiceberg.table.sorting import SortOrder

LONGEST_WORKER = timedelta(days=7)
"""No worker runs longer, whatever is declared: the collector takes files that nobody has named for so long, and longer,
for those of a worker that died. EMR Serverless ends its jobs after this time as well."""
FORMATS = ("parquet", "orc")
"""The formats that data files may have. Avro's have no statistics, and PyIceberg can't read them to count nulls."""
IDENTIFIER = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")


@dataclass(frozen=True)
class Table:
    """One Iceberg table as one Dagster asset.

    Raises DeclarationError, naming the table and its first problem.
    """

    identifier: str
    """``namespace.table`` in the catalog ``lake``; also the asset key."""
    columns: Sequence[Column]
    """The columns in order; field ids start at 1."""
    step: str
    """``module:function`` with the signature ``(spark, window) -> DataFrame``."""
    partitions: dg.PartitionsDefinition | None = None
    """The Dagster partitions, or None. Where a run owns its partitions (Overwrite, Merge by partition), each must be a
    whole number of Iceberg partitions; else they only select what the step reads."""
    partitioned_by: Sequence[str] = ()
    """Terms in Iceberg's DDL: ``flight_date``, ``day(observed_at)``, ``bucket(16, id)``."""
    sorted_by: Sequence[str] = ()
    """Terms in Iceberg's DDL, as in ``partitioned_by``."""
    partitions_per_worker: int | None = None
    """The most partitions that one worker gets; None for all of a run."""
    write_mode: WriteMode = field(default_factory=Overwrite)
    """How a run changes the table (declare/modes.py)."""
    on_schema_change: OnSchemaChange = OnSchemaChange.FAIL
    """What a run does where the table in the catalog has other columns than declared (declare/change_policies.py)."""
    on_layout_change: OnLayoutChange = OnLayoutChange.FAIL
    """What a run does where the table in the catalog has other partitions, sort order, properties or docs than declared
    (declare/change_policies.py)."""
    unique: Sequence[str] = ()
    """Columns that together are unique within an Iceberg partition."""
    checks: Mapping[str, str] = field(default_factory=dict)
    """Conditions that no row may fail, by name: in SQL, such as ``{"no negative distance": "distance >= 0"}``, or
    ``module:function`` of a function that returns such a condition as a Spark Column. Null does not fail."""
    allow_empty: bool = False
    """Whether a partition may come out without rows."""
    publish_others: bool = False
    """Whether a run's good partitions are published when others failed."""
    tuning: Tuning = field(default_factory=Tuning)
    """How files are written and planned (declare/tuning.py)."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Other Iceberg table properties."""
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    """Spark settings for this table's workers only."""
    deps: Sequence[dg.AssetDep | dg.AssetKey | dg.AssetSpec | dg.AssetsDefinition | str | Sequence[str]] = ()
    """Upstream asset keys or AssetDep (with a partition mapping where the partitions differ)."""
    description: str = ""
    owners: Sequence[str] = ()
    kinds: Set[str] | Sequence[str] = frozenset()
    compute: Compute | None = None
    """Where the table's workers run, in place of LAKEHOUSE_COMPUTE."""
    size: Size = field(default_factory=Size)
    """What each of the table's workers gets."""
    automation: dg.AutomationCondition[dg.AssetKey] | None = None
    """When Dagster materializes the table by itself."""
    retry_policy: dg.RetryPolicy | None = None
    """How often a failed run is tried again, each time only for the chunks without a receipt."""
    worker_timeout: timedelta | None = None
    """How long one worker may run, without its wait for a machine; None for LONGEST_WORKER."""
    maintenance: Maintenance = field(default_factory=Maintenance)
    """How the table is kept fast (declare/care.py)."""
    arrivals: Arrivals | None = None
    """The objects whose arrival asks for the table's partitions (declare/arrivals.py); None: no object does."""

    def __new__(cls, *values: Any, **options: Any) -> Self:
        """Raises DeclarationError for options that don't exist, or that are missing.

        Python's own error would not name the table.
        """
        if values or options:  # copy and pickle give none
            try:
                signature(cls.__init__).bind(None, *values, **options)
            except TypeError as error:
                near = [name for option in options for name in _similar(option)]
                meant = f"; did you mean {', '.join(near)}?" if near else ""
                identifier = options.get("identifier", values[0] if values else "")
                raise DeclarationError(f"table {identifier!r}: {error}{meant}") from None
        return super().__new__(cls)

    def __post_init__(self) -> None:
        try:
            self._check_columns()
            self._check_options()
            if not isinstance(self.tuning, Tuning):
                raise ValueError(f"tuning is {self.tuning!r}, it must be a Tuning such as Tuning(file_mib=256)")
            for found in (*self.write_mode.problems(self), *self.tuning.problems(self)):
                raise ValueError(found)
            self._check_heeded()
            _check_function("the step's module", self.step)
            for name, check in self.checks.items():
                if FUNCTION.fullmatch(check):
                    _check_function(f"the module of the check {name!r}", check)
                elif problem := condition_problem(check, [c.name for c in self.columns]):
                    raise ValueError(f"the check {name!r} ({check}) can't be evaluated: {problem}")
            for found in mistyped(self):  # last, as others say more
                raise ValueError(found)
            self.code_version  # noqa: B018  so that terms and code that can't be read are refused at load
        except ValueError as error:
            raise DeclarationError(f"table {self.identifier!r}: {error}") from error
        except (TypeError, AttributeError) as error:
            problem = next(mistyped(self), f"an option has a value of another type than it takes: {error}")
            raise DeclarationError(f"table {self.identifier!r}: {problem}") from error
        self.alignment  # noqa: B018  so that what does not line up is refused at load
        if self.arrivals is not None:
            names = [part.name for part in self.alignment.parts]
            if problem := arrivals_problem(self.arrivals, names) or self._arrivals_twice():
                raise DeclarationError(f"table {self.identifier!r}: {problem}")

    def _check_columns(self) -> None:
        if not IDENTIFIER.fullmatch(self.identifier):
            raise ValueError("the identifier is not of the form namespace.table in lower case, digits and _")
        for found in self.columns:
            if not isinstance(found, Column):
                raise ValueError(f"columns has {found!r}, it must have columns such as column('id', 'long')")
        for option in ("unique", "partitioned_by", "sorted_by", "deps", "owners", "kinds"):
            if isinstance(value := getattr(self, option), str):  # it would be read as a list of its letters
                raise ValueError(f"{option} is a string, it must be a list such as [{value!r}]")
        for name in self.unique:
            if not find_column(self.schema, name, "unique").field_type.is_primitive:
                raise ValueError(f"unique names {name!r}, whose type is nested: such values can't be compared")

    def _check_options(self) -> None:
        for option in ("allow_empty", "publish_others"):
            if (chosen := getattr(self, option)) not in (True, False):
                raise ValueError(f"{option} is {chosen!r}, it must be True or False")
        most = self.partitions_per_worker
        if most is not None and not (type(most) is int and most >= 1):
            raise ValueError(f"partitions_per_worker is {most!r}, it must be a whole number of 1 or more")
        for option in ("properties", "spark_conf"):
            if not isinstance(value := getattr(self, option), Mapping):
                raise ValueError(f"{option} is {value!r}, it must be a dict")
        if not (isinstance(self.checks, Mapping) and all(isinstance(check, str) for check in self.checks.values())):
            raise ValueError(f"checks is {self.checks!r}, it must be conditions by name: {{'positive': 'n > 0'}}")
        if wrong := {name: value for name, value in self.properties.items() if not isinstance(value, str)}:
            raise ValueError(f"properties has {wrong}, the values must be strings, as Iceberg keeps them")
        if (version := str(self.properties.get("format-version", "2"))) != "2":
            raise ValueError(f"format-version {version}: PyIceberg 0.12 writes manifests of version 2 only")
        if (written := self.properties.get("write.format.default", "parquet").lower()) not in FORMATS:
            raise ValueError(
                f"write.format.default {written}: its files can't be audited, as PyIceberg 0.12 reads "
                f"{' and '.join(FORMATS)} only"
            )
        for found in property_problems(self.properties):
            raise ValueError(found)
        if not isinstance(self.write_mode, WriteMode) or isinstance(self.write_mode, type):
            raise ValueError(f"write_mode is {self.write_mode!r}, it must be a write mode (declare/modes.py)")
        for option, value, known in (
            ("on_schema_change", self.on_schema_change, list(OnSchemaChange)),
            ("on_layout_change", self.on_layout_change, list(OnLayoutChange)),
        ):
            if value not in known:
                raise ValueError(f"{option} is {value!r}, known are {', '.join(known)}")
        if secrets := self.spark_conf.keys() - public(self.spark_conf).keys():
            names = ", ".join(sorted(secrets))
            raise ValueError(f"spark_conf has {names}: secrets belong in the workers' environment, not in code")
        if self.compute is not None and self.compute not in list(Compute):
            raise ValueError(f"compute is {self.compute!r}, known are {', '.join(Compute)}")
        _check_size(self.size)
        timeout = self.worker_timeout
        if timeout is not None and not (isinstance(timeout, timedelta) and timeout > timedelta(0)):
            raise ValueError(f"worker_timeout is {timeout!r}, it must be a timedelta above 0")
        if timeout is not None and timeout > LONGEST_WORKER:
            raise ValueError(
                f"worker_timeout is {timeout}, it must be at most {LONGEST_WORKER.days} days: what a worker wrote and "
                "nobody names is collected some time after that"
            )
        if isinstance(self.retry_policy, dg.RetryPolicy):
            retries, delay = self.retry_policy.max_retries, self.retry_policy.delay or 0
            if retries < 0:
                raise ValueError(f"retry_policy has max_retries={retries}, it must be 0 or more")
            if not 0 <= delay < math.inf:
                raise ValueError(f"retry_policy has delay={delay}, it must be seconds of 0 or more")
        if problem := care_problem(self.maintenance):
            raise ValueError(problem)
        for name in self.maintenance.zorder:
            find_column(self.schema, name, "maintenance.zorder")

    def _check_heeded(self) -> None:
        """Raises ValueError if an option is declared that the write mode does not look at."""
        mode, name = self.write_mode, type(self.write_mode).__name__
        if self.allow_empty and Rule.EMPTY not in mode.rules:
            raise ValueError(f"allow_empty has no effect with {name}, whose runs may always have no rows: leave it out")
        for option in ("partitions_per_worker", "publish_others"):
            if getattr(self, option) and not mode.splits:
                raise ValueError(
                    f"{option} has no effect with this {name}, of which one worker does a whole run: leave it out. "
                    "Workers share runs of Overwrite(), Append() without dedup_on and Merge(by_partition=True)"
                )

    def _arrivals_twice(self) -> str | None:
        if self.write_mode.adds_again:
            return (
                "a message may come twice, and this Append would add its rows again: declare Append(dedup_on=…), Merge "
                "or Overwrite with arrivals"
            )
        return None

    @property
    def worker_limit(self) -> timedelta:
        """How long a worker of the table may run: no longer than the collector waits for what it may still report."""
        return self.worker_timeout or LONGEST_WORKER

    @property
    def key(self) -> dg.AssetKey:
        """The key of the table's asset, one part for each name in the identifier."""
        return dg.AssetKey(self.identifier.split("."))

    @property
    def domain(self) -> str:
        """The name of the table's domain."""
        return self.identifier.partition(".")[0]

    @cached_property
    def schema(self) -> Schema:
        """The Iceberg schema of the declared columns. Raises ValueError if they can't form one."""
        return schema_of(self.columns)

    @cached_property
    def spec(self) -> PartitionSpec:
        """The Iceberg partitions that ``partitioned_by`` declares. Raises ValueError for terms that can't be used."""
        return partition_spec(self.partitioned_by, self.schema)

    @cached_property
    def order(self) -> SortOrder:
        """The sort order that ``sorted_by`` declares."""
        return sort_order(self.sort_terms)

    @cached_property
    def sort_terms(self) -> list[Term]:
        """The terms of ``sorted_by``. Raises ValueError for terms that can't be read."""
        return sort_terms(self.sorted_by, self.schema)

    @cached_property
    def alignment(self) -> Alignment:
        """The Dagster partitions laid over Iceberg's; where no run owns them, they only select what its step reads.

        Raises DeclarationError for partitions that can't be used.
        """
        if self.write_mode.owns_partitions:
            return Alignment.of(self.identifier, self.schema, self.spec, self.partitions)
        return Alignment.of_input(self.identifier, self.partitions)

    @cached_property
    def all_properties(self) -> Mapping[str, str]:
        """All declared table properties, including those of its tuning."""
        return {**self.tuning.properties(), **self.properties}

    @property
    def replaces_partitions(self) -> bool:
        """Whether each run replaces all rows of its partitions."""
        return self.write_mode.owns_partitions and self.write_mode.merge is None

    @property
    def replaces_all(self) -> bool:
        """Whether each run replaces all rows of the table."""
        return self.partitions is None and self.replaces_partitions

    @cached_property
    def code_version(self) -> str:
        """The hashes ``<code>-<declaration>``, 8 hex digits each.

        The first is of the code that the step and the checks reach (step_code.py), the second of what is declared of
        the rows and of how they are written.
        """
        order = [(term.column.field_id, term.transform) for term in self.sort_terms]
        shape = (self.schema, self.spec, order, tuple(self.unique), self.write_mode, *sorted(self.checks.items()))
        options = (sorted(self.all_properties.items()), sorted(self.spark_conf.items()))
        try:
            code = code_hash(*declared_code(self.step, self.checks.values()))
        except (OSError, SyntaxError, ValueError) as error:
            raise ValueError(f"a module that the step {self.step} imports can't be read: {error}") from error
        return "-".join(
            hashlib.sha256(repr(half).encode()).hexdigest()[:8] for half in (code, (self.step, shape, options))
        )


def _similar(option: str) -> list[str]:
    known = [field.name for field in fields(Table)]
    return [] if option in known else get_close_matches(option, known, n=1)


def _check_size(size: Size) -> None:
    if not isinstance(size, Size):
        raise ValueError(f"size is {size!r}, it must be a Size such as Size(vcpus=2, memory_gib=8)")
    for name, value in vars(size).items():
        types, number = ((int,), "whole number") if name == "disk_gib" else ((int, float), "number")
        if value is not None and not (type(value) in types and math.isfinite(value) and value > 0):
            raise ValueError(f"size has {name}={value!r}, it must be a {number} above 0")
    if size.memory_gib is not None and size.memory_gib < LEAST_MEMORY_GIB:
        raise ValueError(f"size has memory_gib={size.memory_gib:g}, a worker needs {LEAST_MEMORY_GIB} GiB")


@lru_cache(maxsize=512)
def _functions(source: str) -> frozenset[str]:
    """Names the functions of a module; cached, as many tables may have their steps in one. Raises SyntaxError."""
    return frozenset(node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))


def _check_function(what: str, reference: str) -> None:
    """Raises ValueError if there is no such function.

    Its module is read, not imported: steps import pyspark, but a code location must load without it.
    """
    module, _, function = reference.partition(":")
    try:
        defined = _functions(read_module(module))
    except ImportError as error:
        raise ValueError(f"{what} {module!r} can't be found: {error}") from error
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"{what} {module!r} can't be read: {error}") from error
    if function not in defined:
        raise ValueError(f"{what} {module} has no function {function!r}; it has {sorted(defined)}")
