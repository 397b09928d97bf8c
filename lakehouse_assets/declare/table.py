"""The declaration of one table: what it holds, how it is partitioned, what fills it; refused here if it can't work.
No catalog, no run, no Spark: a declaration is data."""

from __future__ import annotations

import ast
import difflib
import hashlib
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from types import ModuleType

import dagster as dg
from pyiceberg.exceptions import ValidationError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform, Transform, parse_transform
from pyiceberg.types import NestedField

from lakehouse_assets.declare.partitions import Alignment
from lakehouse_assets.errors import DeclarationError
from lakehouse_assets.protocol import step_code
from lakehouse_assets.protocol.module_source import read_module
from resources.secrets import public
from resources.settings import Compute, Settings
from resources.sizes import LEAST_MEMORY_GIB, Size, emr_problem, serverless_problem

COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
IDENTIFIER = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")
TERM = re.compile(r"(?:(?P<transform>\w+)\((?:(?P<width>[1-9]\d*),\s*)?(?P<wrapped>\w+)\)|(?P<plain>\w+))")


@dataclass(frozen=True)
class Overwrite:
    """Write mode: a run replaces exactly its partitions. Other modes get a class of their own beside this one."""


WriteMode = Overwrite


def tables_of(module: ModuleType) -> list[Table]:
    """The tables declared at a module's top level, in order: writing one down is what adds it."""
    return [value for value in vars(module).values() if isinstance(value, Table)]


def computes_of(tables: Sequence[Table]) -> dict[Compute, list[str]]:
    """The computes that tables choose for themselves, each with those tables' identifiers."""
    chosen: dict[Compute, list[str]] = {}
    for table in tables:
        if table.compute is not None:
            chosen.setdefault(Compute(table.compute), []).append(table.identifier)
    return chosen


def refuse_strangers(tables: Sequence[Table], known: Collection[dg.AssetKey]) -> None:
    """Refuse two tables of one identifier, and deps that no asset has. known: the keys of all assets of the location.

    Raises DeclarationError, naming the table. Dagster takes an unknown key for an asset of somebody else's, and the
    order of tables and their automation are silently wrong.
    """
    names = [table.identifier for table in tables]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DeclarationError(f"table {twice[0]!r}: declared twice; each table needs an identifier of its own")
    texts = sorted(key.to_user_string() for key in known)
    for table in tables:
        for dep in table.deps:
            text = dg.AssetDep.from_coercible(dep).asset_key.to_user_string()
            if text not in texts:
                near = ", ".join(difflib.get_close_matches(text, texts)) or ", ".join(texts)
                raise table._error(f"deps has {text!r}, which no asset of this code location has; near it: {near}")


def size_problems(tables: Sequence[Table], settings: Settings) -> list[str]:
    """Why no worker of a table's size can be had where it runs: a sentence each, with the table's name."""
    told = [(table.identifier, _size_problem(table, settings)) for table in tables if table.size != Size()]
    return [f"table {identifier!r}: its size{problem}" for identifier, problem in told if problem]


def _size_problem(table: Table, settings: Settings) -> str | None:
    problem, over = None, ""
    match table.compute or settings.compute:
        case Compute.ECS if settings.ecs is not None:
            problem, over = settings.ecs.sized(table.size)[1], " over LAKEHOUSE_ECS_VCPUS, …_MEMORY_GIB, …_DISK_GIB"
        case Compute.EMR:
            problem = emr_problem(table.size)
        case Compute.EMR_SERVERLESS:
            problem = serverless_problem(table.size, {**table.spark_conf, **settings.spark_conf})
    return f"{over}: {problem}" if problem else None


@dataclass(frozen=True)
class Column:
    """One column. type: an Iceberg type as Iceberg spells it (``int``, ``timestamptz``, ``decimal(9,2)``)."""

    name: str
    type: str
    doc: str = ""
    required: bool = False


def column(name: str, type: str, doc: str = "", *, required: bool = False) -> Column:
    """A column of a table; ``required`` columns hold no nulls (audited from file statistics)."""
    return Column(name, type, doc, required)


@dataclass(frozen=True)
class Table:
    """One Iceberg table as one Dagster asset.

    identifier: ``namespace.table`` in the catalog ``lake``; also the asset key.
    columns: in order; field ids are given from 1.
    step: ``module:function`` with the signature ``(spark, window) -> DataFrame``.
    partitions: the Dagster partitions, or None. Each must be a whole number of Iceberg partitions.
    partitioned_by, sorted_by: terms in Iceberg's DDL: ``flight_date``, ``day(observed_at)``, ``bucket(16, id)``.
    partitions_per_worker: how many partitions reach one worker; None: all partitions of a run.
    unique: columns that together are unique within an Iceberg partition.
    allow_empty: whether a partition may come out without rows.
    publish_others: whether a run's good partitions are published when other chunks failed.
    properties: Iceberg table properties. spark_conf: settings for this table's workers only.
    compute: where this table's workers run, where it is not LAKEHOUSE_COMPUTE's choice. size: what each of them gets.
    deps: upstream asset keys or AssetDep (with a partition mapping where the partitions differ).
    automation: when Dagster asks for it by itself. retry_policy: how often a failed run is tried again, each time
        only for the chunks without a receipt. worker_timeout: how long one worker may run, waiting for
        a machine not counted; None is for ever.

    Raises DeclarationError, naming the table, for whatever can't work.
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
    automation: dg.AutomationCondition | None = None
    retry_policy: dg.RetryPolicy | None = None
    worker_timeout: timedelta | None = None

    def __post_init__(self) -> None:
        if not IDENTIFIER.fullmatch(self.identifier):
            raise self._error("the identifier is not of the form namespace.table in lower case, digits and _")
        self._check_columns()
        if self.partitions_per_worker is not None and self.partitions_per_worker < 1:
            raise self._error(f"partitions_per_worker is {self.partitions_per_worker}, it must be 1 or more")
        if str(self.properties.get("format-version", "2")) != "2":
            raise self._error(
                f"format-version {self.properties['format-version']}: PyIceberg 0.12 writes manifests of version 2 only"
            )
        if not isinstance(self.write_mode, WriteMode):
            raise self._error(f"write_mode is {self.write_mode!r}, it must be Overwrite()")
        if len(public(self.spark_conf)) < len(self.spark_conf):
            hidden = ", ".join(self.spark_conf.keys() - public(self.spark_conf).keys())
            raise self._error(f"spark_conf has {hidden}: secrets belong to the workers' environment, not to code")
        self._check_workers()
        self._check_step()
        self.alignment  # noqa: B018  computed here so that what does not line up is refused at load

    @property
    def key(self) -> dg.AssetKey:
        return dg.AssetKey(self.identifier.split("."))

    @property
    def step_module(self) -> str:
        return self.step.partition(":")[0]

    @cached_property
    def schema(self) -> Schema:
        return Schema(*(self._field(i, c) for i, c in enumerate(self.columns, start=1)))

    @cached_property
    def spec(self) -> PartitionSpec:
        fields = []
        for i, term in enumerate(self.partitioned_by):
            source, transform, label = self._term(term)
            name = source if isinstance(transform, IdentityTransform) else f"{source}_{label}"
            fields.append(PartitionField(source_id=self._id(source), field_id=1000 + i, transform=transform, name=name))
        return PartitionSpec(*fields)

    @cached_property
    def order(self) -> SortOrder:
        fields = [SortField(source_id=self._id(s), transform=t) for s, t, _ in map(self._term, self.sorted_by)]
        return SortOrder(*fields, order_id=1) if fields else SortOrder(order_id=0)

    @cached_property
    def alignment(self) -> Alignment:
        """How partition keys and Iceberg partitions correspond."""
        return Alignment.of(self.identifier, self.schema, self.spec, self.partitions)

    @cached_property
    def code_version(self) -> str:
        """12 hex digits over the code that the step reaches (step_code.py) and what is declared of the rows."""
        shape = (self.schema, self.spec, self.order, tuple(self.unique), self.write_mode)
        options = (sorted(self.properties.items()), sorted(self.spark_conf.items()))
        told = repr((self.step, step_code.code_hash(self.step), shape, options))
        return hashlib.sha256(told.encode()).hexdigest()[:12]

    def _check_columns(self) -> None:
        # Spark takes names that differ in case only for the same column.
        names = [c.name.lower() for c in self.columns]
        if twice := sorted({n for n in names if names.count(n) > 1}):
            raise self._error(f"columns declared twice: {', '.join(twice)}")
        if bad := [c.name for c in self.columns if not COLUMN.fullmatch(c.name)]:
            raise self._error(f"columns must be of letters, digits and _, found {', '.join(map(repr, bad))}")
        if not names:
            raise self._error("it has no columns")
        for option in ("unique", "partitioned_by", "sorted_by"):
            terms = getattr(self, option)
            if isinstance(terms, str):
                raise self._error(f"{option} is a string, it must be a list such as [{terms!r}]")
            if option == "unique":
                for name in terms:
                    self._id(name, option)
            else:
                self._check_terms(option, terms)

    def _check_terms(self, option: str, terms: Sequence[str]) -> None:
        for term in terms:
            source, transform, _ = self._term(term)
            kind = self.schema.find_type(self._id(source, option))
            if not transform.can_transform(kind):
                raise self._error(f"{option} has {term!r}, which Iceberg can't take of a column of type {kind}")
        fields = self.spec.fields if option == "partitioned_by" else ()
        names = [field.name for field in fields]
        if clash := [n for n in names if names.count(n) > 1 or (n not in terms and n in self.schema.column_names)]:
            raise self._error(f"{option} gives the name {clash[0]!r} to a partition field, which is taken already")
        kinds = [(field.source_id, field.transform.dedup_name) for field in fields]
        if len(set(kinds)) < len(kinds):
            raise self._error(f"{option} takes more than one of year, month, day and hour of a column: keep the finest")

    def _check_workers(self) -> None:
        if self.compute is not None and self.compute not in list(Compute):
            raise self._error(f"compute is {self.compute!r}, known are {', '.join(Compute)}")
        if not isinstance(self.size, Size):
            raise self._error(f"size is {self.size!r}, it must be a Size such as Size(vcpus=2, memory_gib=8)")
        for name, value in vars(self.size).items():
            kinds, number = ((int,), "whole number") if name == "disk_gib" else ((int, float), "number")
            if value is not None and not (type(value) in kinds and math.isfinite(value) and value > 0):
                raise self._error(f"size has {name}={value!r}, it must be a {number} above 0")
        if self.size.memory_gib is not None and self.size.memory_gib < LEAST_MEMORY_GIB:
            raise self._error(f"size has memory_gib={self.size.memory_gib:g}, a worker needs {LEAST_MEMORY_GIB} GiB")
        timeout = self.worker_timeout
        if timeout is not None and not (isinstance(timeout, timedelta) and timeout > timedelta(0)):
            raise self._error(f"worker_timeout is {timeout!r}, it must be a timedelta above 0")

    def _check_step(self) -> None:
        module, _, function = self.step.partition(":")
        try:
            # Read, not imported: steps import pyspark, and a code location loads without it.
            defined = {n.name for n in ast.parse(read_module(module)).body if isinstance(n, ast.FunctionDef)}
        except ImportError as error:
            raise self._error(f"the step's module {module!r} can't be found: {error}") from error
        except (OSError, SyntaxError, ValueError) as error:
            raise self._error(f"the step's module {module!r} can't be read: {error}") from error
        if function not in defined:
            raise self._error(f"the step's module {module} has no function {function!r}; it has {sorted(defined)}")
        try:
            self.code_version  # noqa: B018  computed here so that code that can't be read is refused at load
        except (OSError, SyntaxError, ValueError) as error:
            raise self._error(f"a module that the step {self.step} imports can't be read: {error}") from error

    def _term(self, term: str) -> tuple[str, Transform, str]:
        match = TERM.fullmatch(term.strip())
        if match and match["plain"]:
            return match["plain"], IdentityTransform(), ""
        try:
            if match is None:
                raise ValueError("neither a column nor a transform of one")
            text = f"{match['transform']}[{match['width']}]" if match["width"] else match["transform"]
            label = {"truncate": "trunc"}.get(match["transform"], match["transform"])
            return match["wrapped"], parse_transform(text), label
        except (ValueError, ValidationError) as error:
            problem = f"{term!r} is no partition or sort term such as flight_date, day(at) or bucket(16, id)"
            raise self._error(problem) from error

    def _field(self, field_id: int, c: Column) -> NestedField:
        try:
            field = NestedField(
                field_id=field_id, name=c.name, field_type=c.type, required=c.required, doc=c.doc or None
            )
            Schema(field).check_format_version_compatibility(2)
        except (ValueError, ValidationError) as error:
            raise self._error(f"column {c.name!r} has the type {c.type!r}, unknown to Iceberg's format 2") from error
        return field

    def _id(self, name: str, option: str = "a term") -> int:
        schema = self.schema  # outside: a column of an unknown type is another error
        try:
            return schema.find_field(name).field_id
        except ValueError:
            raise self._error(
                f"{option} names the column {name!r}, the schema has {', '.join(c.name for c in self.columns)}"
            ) from None

    def _error(self, problem: str) -> DeclarationError:
        return DeclarationError(f"table {self.identifier!r}: {problem}")
