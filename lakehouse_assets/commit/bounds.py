"""Finds the part of a table that a merge's changes could meet, by the bounds of their keys, and the files in that part.

Only metadata is read. How the bounds are found is in worker/changes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, In, LessThanOrEqual, Reference
from pyiceberg.expressions.literals import Literal, literal
from pyiceberg.expressions.visitors import (
    _InclusiveMetricsEvaluator,
    expression_evaluator,
    inclusive_projection,
    manifest_evaluator,
)
from pyiceberg.manifest import DataFile, DataFileContent, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record
from pyiceberg.types import IcebergType, TimestampType, TimestamptzType

from lakehouse_assets.wire.work import Bound


def predicate(bounds: Iterable[Bound], schema: Schema) -> BooleanExpression:
    """Builds the predicate for rows within all bounds, except those that PyIceberg can't read.

    Spark also has days after the year 9999, which it can't read.
    """
    found: BooleanExpression = AlwaysTrue()
    for bound in bounds:
        with suppress(ValueError):
            found = And(found, _within(bound, schema.find_type(bound.column)))
    return found


def _within(bound: Bound, kind: IcebergType) -> BooleanExpression:
    column = Reference(bound.column)
    if bound.values:
        return In(term=column, values={_value(text, kind) for text in bound.values})
    low, high = _value(bound.low, kind), _value(bound.high, kind)
    return And(GreaterThanOrEqual(term=column, value=low), LessThanOrEqual(term=column, value=high))


def _value(text: str, kind: IcebergType) -> Literal[Any]:
    if isinstance(kind, (TimestampType, TimestamptzType)):
        return literal(int(text)).to(kind)
    return literal(text).to(kind)


@dataclass
class ManifestsWithin:
    """Tells which manifests may list files with rows for which a predicate holds."""

    metadata: TableMetadata
    schema: Schema
    """The schema whose column names the predicate uses."""
    predicate: BooleanExpression
    _manifests: dict[int, Callable[[ManifestFile], bool]] = field(default_factory=dict, init=False)

    def may_be_in(self, manifest: ManifestFile) -> bool:
        """Tells whether the manifest may list such a file."""
        spec_id = manifest.partition_spec_id
        if spec_id not in self._manifests:
            spec = self.metadata.specs()[spec_id]
            projected = inclusive_projection(self.schema, spec)(self.predicate)
            self._manifests[spec_id] = manifest_evaluator(spec, self.schema, projected)
        return self._manifests[spec_id](manifest)


@dataclass
class Within(ManifestsWithin):
    """Tells which files may hold such rows, as well as which manifests may list these."""

    _partitions: dict[int, Callable[[Record], bool]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._metrics = _InclusiveMetricsEvaluator(self.schema, self.predicate)

    def has(self, file: DataFile) -> bool:
        """Tells whether the file may hold such rows or, as a delete file, delete them."""
        spec_id = file.spec_id
        if spec_id not in self._partitions:
            spec = self.metadata.specs()[spec_id]
            projected = inclusive_projection(self.schema, spec)(self.predicate)
            fields = Schema(*spec.partition_type(self.schema).fields)
            self._partitions[spec_id] = expression_evaluator(fields, projected, case_sensitive=True)
        if not self._partitions[spec_id](file.partition):
            return False
        return file.content is not DataFileContent.DATA or bool(self._metrics.eval(file))
