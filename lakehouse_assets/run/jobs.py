"""Shares among jobs, sensors and assets: chosen tables, the launchpad, cursors, tables and names as metadata.

What each of them does is in its own file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

import dagster as dg
from pydantic import TypeAdapter

from lakehouse_assets.declare.table import Table

READS = "reads"
"""The metadata that names versions of tables by snapshot: of those that are no assets here, and all of a release."""
PINNED = "pinned"
"""The metadata that names the snapshots of the tables among its deps that a run has read, by identifier."""
OWN_ROWS = "partitions_own_rows"
"""The definition metadata that says whether a run's rows lie in its own partitions."""
FILES = "drop_zone_files"
"""The metadata that names the files of the drop zone that a partition was made from, a row each; of earlier versions of
this library a list of path, bytes, epoch ms."""
FILE_COLUMNS = ("file", "bytes", "modified")


def chosen_tables(identifiers: Collection[str], tables: Sequence[Table]) -> list[Table]:
    """Returns the tables with these identifiers; all where none is named. Raises Failure for an undeclared one."""
    known = {table.identifier: table for table in tables}
    if unknown := sorted(set(identifiers) - known.keys()):
        text = f"unknown tables: {', '.join(unknown)}; declared are {', '.join(known)}"
        raise dg.Failure(text, allow_retries=False)
    return [table for name, table in known.items() if name in identifiers or not identifiers]


class SensorCursor:
    """The base of dataclasses that a sensor keeps from tick to tick, as its cursor. Losing one loses nothing else."""

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """Reads a cursor. None, and text that is not ours (such as what a person set in the UI), gives a new one."""
        try:
            found: Self = TypeAdapter(cls).validate_json(text or "{}")
        except ValueError:
            return cls()
        return found

    def text(self) -> str:
        """Returns the cursor as text, for Dagster to keep."""
        return TypeAdapter(type(self)).dump_json(self).decode()


NO_TAGS: Mapping[str, str] = MappingProxyType({})


def job_of(
    op: dg.OpDefinition, config: type[dg.Config], name: str, description: str, tags: Mapping[str, str] = NO_TAGS
) -> dg.JobDefinition:
    """Returns the job of one op, which the fields of the op alone configure.

    Else a person would fill them in three levels deep, where the launchpad no longer shows their descriptions, beside
    loggers and resources of which none can be configured, such as the IO manager that no op here uses.

    config: the op's config class. tags: those of its runs.
    """

    @dg.config_mapping(config_schema=config.to_fields_dict())
    def own_fields(fields: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"ops": {op.name: {"config": fields}}}

    @dg.job(name=name, description=description, config=own_fields, tags=tags)
    def job() -> None:
        op()

    return job


def shown_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> dg.TableMetadataValue:
    """Returns a table as Dagster metadata. names: of the columns. rows: each has a cell for each column."""
    records = [dg.TableRecord(dict(zip(names, row, strict=True))) for row in rows]
    return dg.MetadataValue.table(records, schema=dg.TableSchema([dg.TableColumn(name) for name in names]))


def markdown_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Does what shown_table() does, as Markdown: for cells that hold links, and tables among other Markdown."""
    cells = ([cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in (names, ["---"] * len(names), *cells))
