"""Helpers for jobs, sensors and assets: config, cursors, metadata."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

import dagster as dg
from pydantic import TypeAdapter

from lakehouse_assets.declare.table import Table

READS = "reads"
"""Metadata: the snapshots that were read of tables that are no assets here, and of all tables of a release."""
PINNED = "pinned"
"""Metadata: the snapshots that a run read of its deps."""
TABLE_NAME = "dagster/table_name"
"""Dagster's name for the metadata that a table's asset has."""
OWN_ROWS = "partitions_own_rows"
"""Definition metadata: whether a run's rows lie in its own partitions."""
FILES = "drop_zone_files"
"""Metadata: the drop zone files of a partition. Earlier versions wrote lists of path, bytes, epoch ms."""
FILE_COLUMNS = ("file", "bytes", "modified")


def chosen_tables(identifiers: Collection[str], tables: Sequence[Table]) -> list[Table]:
    """Returns these tables, or all if none is named. Raises Failure for an undeclared one."""
    known = {table.identifier: table for table in tables}
    if unknown := sorted(set(identifiers) - known.keys()):
        text = f"unknown tables: {', '.join(unknown)}; the declared tables are {', '.join(known)}"
        raise dg.Failure(text, allow_retries=False)
    return [table for name, table in known.items() if name in identifiers or not identifiers]


class SensorCursor:
    """Base of sensors' cursors: dataclasses whose fields all have defaults. A lost cursor loses nothing else."""

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """Parses a cursor. None, and other text that a person set in the UI, give a new one."""
        try:
            found: Self = TypeAdapter(cls).validate_json(text or "{}")
        except ValueError:
            return cls()
        return found

    def text(self) -> str:
        """Returns the cursor as text."""
        return TypeAdapter(type(self)).dump_json(self).decode()


NO_TAGS: Mapping[str, str] = MappingProxyType({})


def job_of(
    op: dg.OpDefinition, config: type[dg.Config], name: str, description: str, tags: Mapping[str, str] = NO_TAGS
) -> dg.JobDefinition:
    """Returns a job of one op whose config is only the op's fields.

    Otherwise these fields would be three levels deep. There the launchpad shows no descriptions, and it lists loggers
    and resources that can't be configured.
    """

    @dg.config_mapping(config_schema=config.to_fields_dict())
    def own_fields(fields: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"ops": {op.name: {"config": fields}}}

    @dg.job(name=name, description=description, config=own_fields, tags=tags)
    def job() -> None:
        op()

    return job


def shown_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> dg.TableMetadataValue:
    """Returns rows as a table for Dagster's UI."""
    records = [dg.TableRecord(dict(zip(names, row, strict=True))) for row in rows]
    return dg.MetadataValue.table(records, schema=dg.TableSchema([dg.TableColumn(name) for name in names]))


def markdown_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns rows as a Markdown table, whose cells may hold links."""
    # A bar or a line break would end the cell.
    cells = ([cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in (names, ["---"] * len(names), *cells))
