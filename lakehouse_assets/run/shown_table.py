"""Makes tables of text, as Dagster's UI and the terminal show them. What is in it is known where it is filled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import dagster as dg


def shown_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> dg.TableMetadataValue:
    """Returns a table as Dagster metadata. names: of the columns. rows: each has a cell for each column."""
    records = [dg.TableRecord(dict(zip(names, row, strict=True))) for row in rows]
    return dg.MetadataValue.table(records, schema=dg.TableSchema([dg.TableColumn(name) for name in names]))


def markdown_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Does what shown_table() does, as Markdown: for cells that hold links, and tables among other Markdown."""
    cells = ([cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in (names, ["---"] * len(names), *cells))
