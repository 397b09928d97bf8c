"""Compares the query of a SQL step with the declarations of the tables, before anything runs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyiceberg.types import DateType

from lakehouse_assets.declare.alignment import TimeDimension
from lakehouse_assets.declare.sql_conditions import WITHOUT_PARENTHESES
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog_in_spark import LAKE
from lakehouse_assets.extensions.sql.query import DIALECT, Query, QueryError, place_in
from lakehouse_assets.extensions.sql.tables import (
    FORMATS,
    TableRead,
    named_tables,
    offset_of,
    sqlglot_schema,
    tables_read,
)
from lakehouse_assets.step.window import CHANGE_TYPE

if TYPE_CHECKING:
    from pyiceberg.types import IcebergType
    from sqlglot.optimizer.scope import Scope

METADATA_COLUMNS = {
    "_change_ordinal",
    "_commit_snapshot_id",
    "_deleted",
    "_file",
    "_metadata",
    "_partition",
    "_pos",
    "_spec_id",
}
"""Columns that Iceberg and Spark give to each table: https://iceberg.apache.org/docs/latest/spark-queries/."""
UNITS = {
    *("microsecond", "millisecond", "second", "minute", "hour", "day", "dayofyear", "week", "month", "quarter", "year"),
}
"""Units of Spark's dateadd(), datediff() and timestampadd(), which look like columns."""
WORD = re.compile(r"\w+")
RANDOM = {"rand", "randn", "random", "randstr", "shuffle", "uniform", "uuid", "monotonically_increasing_id"}
"""Spark's functions whose results differ each time."""


@dataclass(frozen=True)
class Check:
    """The query of one table, and what is wrong with it."""

    table: Table
    file: str
    """For messages."""
    query: Query
    tables: Mapping[str, Table]
    """All tables of the code location, by identifier."""

    def problems(self) -> Iterator[str]:
        """Yields a sentence for each reason why the query can't work, with its place and the cure."""
        try:
            yield from self._parameter_problems()
        except QueryError as error:
            yield self._at(error.offset, error.problem)
        found = (self._name_problems(), self._table_problems(), self._column_problems(), self._output_problems())
        for offset, problem in chain(*found):
            yield self._at(offset, problem)

    def remarks(self) -> Iterator[str]:
        """Yields a sentence for each thing that works, and is probably not meant."""
        from sqlglot import exp

        for call in self.query.tree.find_all(exp.Func):
            name = call.name if isinstance(call, exp.Anonymous) else call.sql_names()[0]
            if name.lower() in RANDOM:
                yield self._at(None, f"{name.lower()}() gives other rows each time, so a retry is no repetition")
        for read in self._reads:
            if column := self._unfiltered(read):
                yield self._at(
                    read.offset,
                    f"it reads all partitions of {read.name}: nothing compares its partition column {column[0]}, as "
                    f"{self._filter_example(*column)} would",
                )

    def _at(self, offset: int | None, problem: str) -> str:
        place = place_in(self.query.text, offset)
        return f"{self.file}{f':{place}' if place else ''}: {problem}"

    def _name_problems(self) -> Iterator[tuple[int | None, str]]:
        for token in self.query.tokens:
            if token.token_type.name == "VAR" and not token.text.isascii():
                yield token.start, f"Spark takes the name {token.text} only in back quotes: `{token.text}`"

    # Parameters

    @cached_property
    def _known_parameters(self) -> list[str]:
        """The names of the parameters that the table's partitions give."""
        parts = self.table.alignment.parts
        times = [part for part in parts if isinstance(part, TimeDimension)]
        names = ["keys"] if parts else []
        names += ["start", "end", "start_date", "end_date"] if times else []
        names += [part.name for part in parts if len(parts) > 1 or not times]
        return [*dict.fromkeys(names)]

    def _parameter_problems(self) -> Iterator[str]:
        for parameter in self.query.parameters:
            if parameter.name not in self._known_parameters:
                have = ", ".join(f":{name}" for name in self._known_parameters)
                known = f"it has {have}" if have else "a table without Dagster partitions has none"
                yield self._at(parameter.start, f"there is no parameter :{parameter.name}; {known}")

    # Tables

    @cached_property
    def _reads(self) -> list[TableRead]:
        return tables_read(self.query)

    def _table_problems(self) -> Iterator[tuple[int | None, str]]:
        domains = {identifier.partition(".")[0] for identifier in self.tables}
        declared = {*self.table.inputs, *self.tables}
        for read in self._reads:
            if read.identifier not in declared and read.identifier.partition(".")[0] in domains:
                near = difflib.get_close_matches(read.identifier, sorted(declared))
                hint = f"; similar ones: {', '.join(f'{LAKE}.{name}' for name in near)}" if near else ""
                yield read.offset, f"no table {LAKE}.{read.identifier} is declared{hint}"
        for node, parts in named_tables(self.query):
            if len(parts) > 2 and difflib.get_close_matches(parts[0], [LAKE]) and parts[0] != LAKE:
                yield offset_of(node), f"there is no catalog {parts[0]}: write {LAKE}.{'.'.join(parts[1:])}"
            if len(parts) > 2 or (len(parts) == 2 and parts[0] in FORMATS):
                continue
            name = ".".join(parts)
            meant = name if name in declared else next((one for one in declared if one.partition(".")[2] == name), None)
            hint = f": write {LAKE}.{meant}" if meant else f"; tables of the lake begin with {LAKE}."
            yield offset_of(node), f"there is no table {name} in the query{hint}"

    # Columns

    def _columns_of(self, read: TableRead) -> list[str] | None:
        """Returns a table's columns; None if they are unknown here."""
        found = self.tables.get(read.identifier)
        # A tag or branch may have other columns.
        if found is None or read.of_metadata or read.name != read.identifier:
            return None
        names = [column.name for column in found.columns]
        return [*names, CHANGE_TYPE] if read.of_changes else names

    @cached_property
    def _by_node(self) -> dict[int, tuple[TableRead, list[str]]]:
        """The tables whose columns are known, by sqlglot's node."""
        found = {}
        for read in self._reads:
            if (columns := self._columns_of(read)) is not None:
                found[id(read.node)] = (read, columns)
        return found

    def _column_problems(self) -> Iterator[tuple[int | None, str]]:
        from sqlglot import exp

        seen: set[int] = set()
        for scope in self.query.scopes:
            sources = {name.casefold(): source for name, source in scope.sources.items()}
            for column in scope.columns:
                source = sources.get(column.table.casefold())
                known = self._by_node.get(id(source))
                if not column.table or column.args.get("db") or known is None or id(column) in seen:
                    continue
                seen.add(id(column))
                read, columns = known
                renamed = isinstance(source, exp.Table) and source.alias_column_names and not read.of_changes
                if not renamed and not _is_among(column.name, columns):
                    yield offset_of(column.this), _no_column(column.name, f"{LAKE}.{read.name} has", columns)
        if any(not self._is_known(source) for scope in self.query.scopes for source in scope.sources.values()):
            return
        every = sorted({name for _, columns in self._by_node.values() for name in columns})
        known_names = self._other_names() | METADATA_COLUMNS | {name.casefold() for name in every}
        yield from self._unknown_qualifiers(known_names)
        for column in self.query.tree.find_all(exp.Column):
            is_own = not column.table and isinstance(column.this, exp.Identifier)
            if is_own and column.name.casefold() not in known_names:
                yield offset_of(column.this), _no_column(column.name, "the query's tables have", every)

    def _unknown_qualifiers(self, names: Collection[str]) -> Iterator[tuple[int | None, str]]:
        """Finds ``x.price`` where x is neither a table there nor a name of anything with fields."""
        for scope in self.query.scopes:
            sources: set[str] = set()
            outer: Scope | None = scope
            while outer:
                sources |= {name.casefold() for name in outer.sources}
                outer = outer.parent
            for column in scope.columns:
                qualifier = column.table.casefold()
                if qualifier and not column.args.get("db") and qualifier not in sources and qualifier not in names:
                    near = difflib.get_close_matches(qualifier, sorted(sources)) or sorted(sources)
                    yield offset_of(column), f"there is no table {column.table} here; there is {_listed(near)}"

    def _is_known(self, source: Any) -> bool:
        from sqlglot import exp

        return not isinstance(source, exp.Table) or id(source) in self._by_node

    def _other_names(self) -> set[str]:
        """Returns all names in the query that are not those of a column, and those that Spark knows, case-folded."""
        from sqlglot import exp

        own = {
            node.name.casefold()
            for node in self.query.tree.find_all(exp.Identifier)
            if not isinstance(node.parent, exp.Column | exp.Table) or isinstance(node.parent.parent, exp.Dot)
        }
        return own | UNITS | {f"{unit}s" for unit in UNITS} | WITHOUT_PARENTHESES

    def _unfiltered(self, read: TableRead) -> tuple[str, IcebergType] | None:
        """Returns the partition column of an input with Dagster's partitions, if no condition compares it."""
        from sqlglot import exp

        upstream = self.tables.get(read.identifier)
        if read.of_changes or upstream is None or upstream.partitions is None or self.table.partitions is None:
            return None
        if not upstream.write_mode.owns_partitions or read.identifier in self._mapped_to_all:
            return None
        columns = {part.column.casefold(): (part.column, part.type) for part in upstream.alignment.parts}
        for clause in self.query.tree.find_all(exp.Where, exp.Join, exp.Having):
            if any(column.name.casefold() in columns for column in clause.find_all(exp.Column)):
                return None
        return next(iter(columns.values()), None)

    @cached_property
    def _mapped_to_all(self) -> set[str]:
        """The inputs whose declared mapping is another than the natural one: the author has thought about it."""
        import dagster as dg

        deps = [dg.AssetDep.from_coercible(dep) for dep in self.table.deps]
        return {".".join(dep.asset_key.path) for dep in deps if dep.partition_mapping is not None}

    def _filter_example(self, column: str, of_type: IcebergType) -> str:
        if "start" not in self._known_parameters:
            return f"{column} IN (:keys)"
        suffix = "_date" if isinstance(of_type, DateType) else ""
        return f"{column} >= :start{suffix} AND {column} < :end{suffix}"

    # Output

    def _output_problems(self) -> Iterator[tuple[int | None, str]]:
        names = self._outputs()
        if names is None:
            return
        declared = [column.name for column in self.table.columns]
        extra = self._of_merge()
        missing = [name for name in declared if not _is_among(name, names)]
        for at, (name, node) in enumerate(zip(names, self.query.tree.selects, strict=False), start=1):
            if not name:
                lacking = f", such as AS {missing[0]}" if missing else ""
                yield offset_of(node), f"column {at} of the result, {node.sql('spark')}, has no name: add one{lacking}"
        unknown = [name for name in names if name and not _is_among(name, declared) and name.casefold() not in extra]
        if (missing or unknown) and all(names):
            yield (
                None,
                f"its columns are not those of {self.table.identifier}: "
                f"missing {_listed(missing)}, unknown {_listed(unknown)}",
            )
        folded = [name.casefold() for name in names if name]
        twice = dict.fromkeys(name for name in folded if folded.count(name) > 1)
        if twice:
            yield None, f"its result has {_listed(twice)} twice: leave one out, or name it otherwise"

    def _outputs(self) -> list[str] | None:
        """Returns the names of the result's columns, empty for those without; None if they can't be known here."""
        from sqlglot.errors import SqlglotError
        from sqlglot.optimizer.qualify import qualify

        own = self.query.tree.selects
        if not any(one.is_star for one in own):
            return [str(one.output_name) for one in own]
        if not self._by_node:
            return None
        try:
            tree = qualify(
                self.query.tree.copy(),
                dialect=DIALECT,
                schema=sqlglot_schema({read.identifier: columns for read, columns in self._by_node.values()}),
                expand_alias_refs=False,
                quote_identifiers=False,
                validate_qualify_columns=False,
            )
        except SqlglotError:
            return None
        return None if any(one.is_star for one in tree.selects) else [str(name) for name in tree.named_selects]

    def _of_merge(self) -> set[str]:
        """Returns the words in a Merge's conditions: the columns that its rows may have beyond the table's."""
        words = WORD.findall(" ".join(self.table.write_mode.row_texts))
        return {word.casefold() for word in words}


def _is_among(name: str, names: Iterable[str]) -> bool:
    return name.casefold() in {one.casefold() for one in names} or name.casefold() in METADATA_COLUMNS


def _no_column(name: str, where: str, columns: Collection[str]) -> str:
    near = difflib.get_close_matches(name.casefold(), columns)
    return f"{where} no column {name}" + (f"; similar ones: {', '.join(near)}" if near else "")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
