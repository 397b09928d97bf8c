"""Columns, and terms of partition specs and sort orders."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg
from pyiceberg.exceptions import ValidationError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.transforms import IdentityTransform, Transform, parse_transform
from pyiceberg.types import DecimalType, FixedType, NestedField, UUIDType

from lakehouse_assets.type_text import NAME, RESERVED, parse_type, type_text

if TYPE_CHECKING:
    from pyiceberg.table.sorting import SortField, SortOrder  # importing the package takes a tenth of a second


@dataclass(frozen=True)
class Column:
    """One declared column.

    Examples:
        >>> from lakehouse_assets import Column, column
        >>> prefixed = [Column(f"origin_{c.name}", c.type, c.doc) for c in [column("lat", "double", "Degrees")]]
        >>> prefixed[0].name
        'origin_lat'
    """

    name: str
    """The column's name, as the step returns it."""
    type: str
    """An Iceberg type in Iceberg's spelling (``int``, ``timestamptz``, ``decimal(9,2)``, ``list<string>``,
    ``map<string, long>``, ``struct<lat: double, lon: double>``)."""
    doc: str = ""
    """The column's documentation, in the catalog and the UI."""
    required: bool = False
    """Whether nulls are forbidden; the audit checks it."""
    was: str = ""
    """The column's former name: if the table still has it, the next run renames the column and keeps its values.
    Harmless after that. Not for parts of nested columns."""


def column(name: str, type: str, doc: str = "", *, required: bool = False, was: str = "") -> Column:
    """Declares a column. The audit checks ``required`` by file statistics; ``was`` is a former name.

    Examples:
        >>> from lakehouse_assets import column
        >>> column("place", "struct<lat: double, lon: double>", "Where it was measured", required=True).type
        'struct<lat: double, lon: double>'
    """
    return Column(name, type, doc, required, was)


def schema_of(columns: Sequence[Column]) -> Schema:
    """Returns the Iceberg schema, with field ids from 1. Raises ValueError for columns that can't form one."""
    if not columns:
        raise ValueError("it has no columns")
    # Compared in lower case, as Spark ignores case in column names.
    names = [c.name.lower() for c in columns]
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise ValueError(f"columns declared twice: {', '.join(twice)}")
    if bad := [c.name for c in columns if not NAME.fullmatch(c.name)]:
        raise ValueError(f"column names must consist of letters, digits and _, found {', '.join(map(repr, bad))}")
    if taken := [c.name for c in columns if c.name.lower() in RESERVED]:
        raise ValueError(f"column names that Iceberg reserves: {', '.join(taken)}; choose other names")
    # Only the first problem is raised.
    for problem in _rename_problems(columns):
        raise ValueError(problem)
    return assign_fresh_schema_ids(Schema(*(_field(i, c) for i, c in enumerate(columns, start=1))))


def _rename_problems(columns: Sequence[Column]) -> Iterator[str]:
    renamed = [c for c in columns if c.was]
    names, before = {c.name.lower() for c in columns}, [c.was.lower() for c in renamed]
    for c in renamed:
        if not NAME.fullmatch(c.was):
            yield f"column {c.name!r} has was={c.was!r}, expected the name of a whole column: letters, digits and _"
        elif c.was.lower() in names:
            yield f"column {c.name!r} has was={c.was!r}, which is declared as well: leave out one of the two"
        elif before.count(c.was.lower()) > 1:
            yield f"several columns have was={c.was!r}: only one of them can have been that column"


def find_column(schema: Schema, name: str, option: str) -> NestedField:
    """Returns the column that an option of the declaration names. Raises ValueError if the schema lacks it."""
    names = [column.name for column in schema.columns]
    if name not in names:
        raise ValueError(f"{option} names the column {name!r}, but the columns are {', '.join(names)}")
    return schema.find_field(name)


def _field(field_id: int, c: Column) -> NestedField:
    try:
        type_ = parse_type(c.type)
        field = NestedField(field_id=field_id, name=c.name, field_type=type_, required=c.required, doc=c.doc or None)
        # Raises for types that only format 3 has.
        Schema(field).check_format_version_compatibility(2)
    except (ValueError, ValidationError) as error:
        raise ValueError(
            f"column {c.name!r} has the type {c.type!r}, unknown to Iceberg's format 2: {error}"
        ) from error
    return field


def types_of(schema: Schema) -> dict[str, str]:
    """Returns each column's type, in the spelling of declarations."""
    return {column.name: type_text(column.field_type) for column in schema.columns}


def column_schema(schema: Schema) -> dg.TableSchema:
    """Returns the schema for Dagster's UI."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                name=column.name,
                type=type_text(column.field_type),
                description=column.doc,
                constraints=dg.TableColumnConstraints(nullable=not column.required),
            )
            for column in schema.columns
        ]
    )


TRANSFORMS = "the transforms are year, month, day, hour, bucket, truncate"
TERM = re.compile(r"(?:(?P<transform>\w+)\((?:(?P<width>[1-9]\d*),\s*)?(?P<wrapped>\w+)\)|(?P<plain>\w+))")
"""A column, or a transform such as ``day(at)`` or ``bucket(16, id)``."""
NAMED = (DecimalType, FixedType, UUIDType)
"""Types that have a name in Avro, manifests' format: a file defines each name once, and PyIceberg can't resolve its
second use."""


@dataclass(frozen=True)
class Term:
    """A term of a partition spec or sort order, such as ``day(at)``: a column and its transform."""

    column: NestedField
    transform: Transform[Any, Any]

    @property
    def field_name(self) -> str:
        """The name that Iceberg's own spec builder gives the partition field: ``at_day``, ``id_bucket``."""
        if isinstance(self.transform, IdentityTransform):
            return self.column.name
        return f"{self.column.name}_{str(self.transform).partition('[')[0].replace('truncate', 'trunc')}"


def partition_spec(terms: Sequence[str], schema: Schema) -> PartitionSpec:
    """Parses ``partitioned_by``. Raises ValueError for unreadable or conflicting terms."""
    parsed = [_parse(term, schema, "partitioned_by") for term in terms]
    names = [term.field_name for term in parsed]
    for name, term in zip(names, parsed, strict=True):
        if names.count(name) > 1 or (name != term.column.name and name in schema.column_names):
            raise ValueError(f"partitioned_by gives a partition field the name {name!r}, which is already taken")
    # Year, month, day and hour share one dedup_name.
    if len({(term.column.field_id, term.transform.dedup_name) for term in parsed}) < len(parsed):
        raise ValueError(
            "partitioned_by has more than one of year, month, day and hour for the same column: keep the finest"
        )
    types = [found for t in parsed if isinstance(found := t.transform.result_type(t.column.field_type), NAMED)]
    if twice := [str(found) for n, found in enumerate(types) if found in types[:n]]:
        raise ValueError(
            f"partitioned_by has two fields of the type {twice[0]}, and PyIceberg can't read the manifests that Spark "
            "writes for them: keep one, use bucket(…) for the other, or give its column another precision"
        )
    # Iceberg counts partition fields from 1000.
    return PartitionSpec(
        *(
            PartitionField(source_id=t.column.field_id, field_id=1000 + i, transform=t.transform, name=t.field_name)
            for i, t in enumerate(parsed)
        )
    )


def sort_terms(terms: Sequence[str], schema: Schema) -> list[Term]:
    """Parses ``sorted_by``. Raises ValueError for unreadable terms."""
    return [_parse(term, schema, "sorted_by") for term in terms]


def sort_order(terms: Sequence[Term]) -> SortOrder:
    """Returns an Iceberg sort order; 0 is the id of the unsorted one."""
    from pyiceberg.table.sorting import SortField, SortOrder

    fields = [SortField(source_id=term.column.field_id, transform=term.transform) for term in terms]
    return SortOrder(*fields, order_id=1 if fields else 0)


def spec_text(spec: PartitionSpec, schema: Schema) -> str:
    """Returns partitions as declared, such as ``day(at), bucket(16, id)``, or ``none``."""
    return ", ".join(_text(field, schema) for field in spec.fields) or "none"


def order_text(order: SortOrder, schema: Schema) -> str:
    """Returns a sort order as declared, such as ``at, bucket(16, id) desc``, or ``none``.

    Names the place of nulls unless usual: first in ascending, last in descending order.
    """
    return ", ".join(f"{_text(field, schema)}{_direction(field)}" for field in order.fields) or "none"


def _parse(text: str, schema: Schema, option: str) -> Term:
    match = TERM.fullmatch(text.strip())
    try:
        if match is None:
            raise ValueError("neither a column nor a transform of one")
        name, width = match["transform"] or "identity", match["width"]
        transform = parse_transform(f"{name}[{width}]" if width else name)
    except (ValueError, ValidationError) as error:
        raise ValueError(
            f"{option} has {text!r}, which is not a partition or sort term such as flight_date, day(at) or bucket(16, "
            f"id); {TRANSFORMS}"
        ) from error
    column = find_column(schema, match["wrapped"] or match["plain"], option)
    if not transform.can_transform(column.field_type):
        type_ = column.field_type
        raise ValueError(f"{option} has {text!r}, which Iceberg can't apply to a column of type {type_}; {TRANSFORMS}")
    return Term(column, transform)


def _direction(field: SortField) -> str:
    from pyiceberg.table.sorting import NullOrder, SortDirection

    ascends = field.direction is SortDirection.ASC
    usual = NullOrder.NULLS_FIRST if ascends else NullOrder.NULLS_LAST
    return f"{'' if ascends else ' desc'}{'' if field.null_order is usual else f' {field.null_order}'}"


def _text(field: PartitionField | SortField, schema: Schema) -> str:
    # Old specs and orders may name a dropped column: only its id is left.
    column = schema.find_column_name(field.source_id) or f"column {field.source_id}"
    if isinstance(field.transform, IdentityTransform):
        return column
    name, _, width = str(field.transform).rstrip("]").partition("[")
    return f"{name}({width}, {column})" if width else f"{name}({column})"
