"""Fills the domain's part of the drop zone with generated files, where the original ones are not.
steps.py reads it; what is in the files is generated.py's."""

# No `from __future__ import annotations`: Dagster needs the annotation of the resource as an object, not as text.

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from lakehouse_assets.domains.trade import generated
from lakehouse_assets.domains.trade.tables import LANDING, MONTHS, OWNERS
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.storage.whole_file import put_file

if TYPE_CHECKING:
    import polars as pl

ROWS_A_MONTH = 2_000
REVISED_MONTHS = 3
REVISED_ROWS = 40
REVISIONS = 2


@dg.asset(
    key=LANDING,
    group_name="landing",
    kinds={"csv"},
    owners=list(OWNERS),
    description=(
        "The drop zone: customs figures as one CSV a year (`customs/2017.csv`), corrections (`revisions/1.csv`) and "
        "the countries' names (`countries.csv`). Where `customs/` has files, such as the original ones, only "
        "what is missing beside them is added; else all are generated, by a seed: none of these figures is real."
    ),
)
def landing(lakehouse: dg.ResourceParam[Lakehouse]) -> dg.MaterializeResult[None]:
    place = lakehouse.landing("trade")
    if "://" in place:
        raise dg.Failure(f"trade.landing can fill a folder, but its part of LAKEHOUSE_LANDING is {place}")
    given = any(Path(place, "customs").glob("*.csv"))
    written = sum(1 for _ in (complete(Path(place)) if given else fill(Path(place), ROWS_A_MONTH)))
    return dg.MaterializeResult(metadata={"files_written": written, "place": dg.MetadataValue.path(place)})


def complete(place: Path) -> Iterator[Path]:
    """Write what is missing beside figures that somebody has put there, yielding each file: made-up names of countries,
    and a file without corrections."""
    if not (place / "countries.csv").exists():
        yield _write(place / "countries.csv", generated.countries())
    if not any((place / "revisions").glob("*.csv")):
        yield _write(place / "revisions" / "none.csv", generated.revisions("201701", 1, of=1, revision=1).clear())


def fill(place: Path, rows_a_month: int) -> Iterator[Path]:
    """Write generated files for all MONTHS; yields each. The figures of the years come last: they are looked for."""
    import polars as pl

    months = MONTHS.get_partition_keys()
    yield _write(place / "countries.csv", generated.countries())
    for revision in range(1, REVISIONS + 1):
        corrections = (
            generated.revisions(ym, min(REVISED_ROWS, rows_a_month), rows_a_month, revision)
            for ym in months[-REVISED_MONTHS:]
        )
        yield _write(place / "revisions" / f"{revision}.csv", pl.concat(corrections))
    for year in sorted({ym[:4] for ym in months}):
        rows = pl.concat(generated.figures(ym, rows_a_month) for ym in months if ym[:4] == year)
        malformed = "".join(f"{line}\n" for line in generated.malformed(rows))
        yield _write(place / "customs" / f"{year}.csv", rows, malformed)


def _write(path: Path, rows: "pl.DataFrame", more: str = "") -> Path:
    put_file(path, f"{rows.write_csv()}{more}".encode())
    return path
