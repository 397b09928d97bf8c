"""Fills trade's part of the drop zone with generated files, unless somebody has brought some."""

# No `from __future__ import annotations`: Dagster needs the annotation of the resource as an object, not as text.

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from lakehouse_assets import Lakehouse, put_file
from lakehouse_assets.domains.trade import generated
from lakehouse_assets.domains.trade.shape import MONTHS, YEARS
from lakehouse_assets.domains.trade.tables import LANDING, OWNERS

if TYPE_CHECKING:
    import polars as pl

# The size of the generated files: figures of each month; corrections of each of the last months, in each revision.
ROWS_A_MONTH = 2_000
REVISED_MONTHS = 3
REVISED_ROWS = 40
REVISIONS = 2
MADE_UP = "made_up.txt"
"""Lists the size in bytes and name of each generated file, which tells them from files that somebody has brought."""


@dg.asset(
    key=LANDING,
    group_name="landing",
    kinds={"csv"},
    owners=list(OWNERS),
    description=(
        "The drop zone: customs figures as one CSV a year (`customs/2017.csv`), corrections (`revisions/1.csv`) and "
        "the countries' names (`countries.csv`). Where somebody has brought files, such as the original ones, only "
        "names of countries and a file without corrections are added if there are none; else all files are generated, "
        "by a seed: none of these figures is real. Move files in when they are complete: steps read what is there."
    ),
)
def landing(lakehouse: dg.ResourceParam[Lakehouse]) -> dg.MaterializeResult[None]:
    """Writes missing generated files, or what complete() adds."""
    place = lakehouse.landing("trade")
    if "://" in place:
        raise dg.Failure(
            f"trade.landing can fill a folder, but its part of LAKEHOUSE_LANDING is {place}: put the files there, and "
            "leave this asset out",
            allow_retries=False,
        )
    folder = Path(place)
    written = sum(1 for _ in (complete(folder) if not_made_up(folder) else fill(folder, ROWS_A_MONTH)))
    return dg.MaterializeResult(metadata={"files_written": written, "place": dg.MetadataValue.path(place)})


def not_made_up(place: Path) -> list[str]:
    """Returns the names of files that somebody has brought. Raises dagster.Failure if made-up ones are there, too."""
    made_up = _made_up(place)
    # Without the names that Spark skips: of editors' files, and of files still being written.
    shown = ("customs/[!._]*", "revisions/[!._]*", "countries.csv")
    there = [path for names in shown for path in sorted(place.glob(names)) if path.is_file()]
    brought = [name for path in there if made_up.get(name := str(path.relative_to(place))) != path.stat().st_size]
    if brought and made_up:
        raise dg.Failure(
            f"{place} has files that were made up, which {MADE_UP} names, and others, such as {brought[0]}; figures of "
            f"both would be mixed. Remove {MADE_UP} and what it names but is not yours, then run again",
            allow_retries=False,
        )
    return brought


def _made_up(place: Path) -> dict[str, int]:
    """Returns name → size of the generated files."""
    listed = place / MADE_UP
    lines = listed.read_text().splitlines() if listed.exists() else ()
    return {name: int(size) for size, name in (line.split(" ", 1) for line in lines)}


def complete(place: Path) -> Iterator[Path]:
    """Adds what steps need if nobody has brought it: names of countries, a file without corrections. Yields each."""
    if not (place / "countries.csv").exists():
        yield _write(place / "countries.csv", generated.countries())
    if not any((place / "revisions").glob("*.csv")):
        # clear() keeps only the header.
        yield _write(place / "revisions" / "none.csv", generated.revisions("201701", 1, of=1, revision=1).clear())


def fill(place: Path, rows_a_month: int) -> Iterator[Path]:
    """Writes the missing generated files for all MONTHS, and yields each.

    rows_a_month: 30 or more; with fewer, the malformed lines are too many for the steps.
    """
    import polars as pl

    def corrections(revision: int) -> str:
        rows = min(REVISED_ROWS, rows_a_month)
        months = (generated.revisions(ym, rows, rows_a_month, revision) for ym in MONTHS[-REVISED_MONTHS:])
        return pl.concat(months).write_csv()

    def year_of_figures(year: str) -> str:
        rows = pl.concat(generated.figures(ym, rows_a_month) for ym in MONTHS if ym[:4] == year)
        return rows.write_csv() + "".join(f"{line}\n" for line in generated.malformed(rows))

    files: dict[str, Callable[[], str]] = {
        "countries.csv": lambda: generated.countries().write_csv(),
        **{f"revisions/{n}.csv": partial(corrections, n) for n in range(1, REVISIONS + 1)},
        **{f"customs/{year}.csv": partial(year_of_figures, year) for year in YEARS},
    }
    place.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if (place / name).exists():
            continue
        written = content().encode()
        with (place / MADE_UP).open("a") as listed:  # before the file exists: it is never taken for a brought one
            listed.write(f"{len(written)} {name}\n")
        put_file(place / name, written)
        yield place / name


def _write(path: Path, rows: "pl.DataFrame") -> Path:
    put_file(path, rows.write_csv().encode())
    return path
