"""Tables of text, as Dagster's UI and the terminal show them.
What is in it is known where it is filled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import dagster as dg


def shown_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> dg.TableMetadataValue:
    """names: of the columns. rows: a cell for each."""
    records = [dg.TableRecord(dict(zip(names, row, strict=True))) for row in rows]
    return dg.MetadataValue.table(records, schema=dg.TableSchema([dg.TableColumn(name) for name in names]))


def markdown_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """As shown_table(), where cells hold links or stand among other Markdown."""
    cells = ([cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in (names, ["---"] * len(names), *cells))
