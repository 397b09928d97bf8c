"""Shares among the jobs and assets of the code location: chosen tables, the launchpad, tables and names as metadata.

What each of them does is in its own file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import dagster as dg

from lakehouse_assets.declare.table import Table

READS = "reads"
"""The metadata that names versions of tables by snapshot: of those that are no assets here, and all of a release."""
FILES = "drop_zone_files"
"""The metadata that names the files of the drop zone that a partition was made from: path, bytes, epoch ms of each."""


def chosen_tables(identifiers: Collection[str], tables: Sequence[Table]) -> list[Table]:
    """Returns the tables with these identifiers; all where none is named. Raises Failure for an undeclared one."""
    known = {table.identifier: table for table in tables}
    if unknown := sorted(set(identifiers) - known.keys()):
        text = f"unknown tables: {', '.join(unknown)}; declared are {', '.join(known)}"
        raise dg.Failure(text, allow_retries=False)
    return [table for name, table in known.items() if name in identifiers or not identifiers]


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
