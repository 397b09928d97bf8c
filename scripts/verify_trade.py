"""Loads the original customs files into a lake of their own, and compares the report with what is published of it.
Behind ``make verify-trade DIR=…``. The tables and the report are the domain's; nothing is computed here."""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from lakehouse_assets.cli.__main__ import INTERRUPTED
from lakehouse_assets.cli.__main__ import main as lakehouse
from lakehouse_assets.cli.errors import EXPECTED
from lakehouse_assets.cli.terminal import table
from lakehouse_assets.domains.trade import tables
from lakehouse_assets.domains.trade.report import NAME, exports_by_month
from lakehouse_assets.domains.trade.shape import LINE
from lakehouse_assets.environment.catalog import configuration
from lakehouse_assets.errors import LakehouseError

PUBLISHED = Path(tables.__file__).with_name("published.csv")
YEARS = tables.YEARS.get_partition_keys()
NEEDED = (tables.rejected.identifier, tables.customs.identifier, ".".join(exports_by_month.key.path))
"""The report and what it needs. The rest of the domain reads files that are not among the original ones."""


class CannotVerify(LakehouseError):
    """The given folder or the environment is not one to verify with."""


def verify(files: Mapping[str, Path], published: Path = PUBLISHED) -> int:
    """Load the files into a new lake and compare. Returns 0 if every published month is found as it is published; then
    the lake is removed."""
    home = Path(tempfile.mkdtemp(prefix="verify-trade-"))
    status = 1
    try:
        status = load(files, home) or compare(home, published)
    finally:
        if status:
            print(f"the lake is left to be looked at: {home}")
        else:
            shutil.rmtree(home)
            print(f"the lake is removed: {home}")
    return status


def load(files: Mapping[str, Path], home: Path) -> int:
    """Run NEEDED as ``make run DOMAIN=trade`` does, on links to the files. Returns the exit status."""
    landing = home / "landing"
    (landing / "trade" / "customs").mkdir(parents=True)
    for year, path in files.items():
        (landing / "trade" / "customs" / f"{year}.csv").symlink_to(path.absolute())
    os.environ |= {"LAKEHOUSE_HOME": str(home), "LAKEHOUSE_LANDING": str(landing)}
    os.environ.pop("LAKEHOUSE_STAGING", None)  # by default it is in the home
    return lakehouse(["run", *NEEDED])


def compare(home: Path, published: Path) -> int:
    """Print each published month with what home's report has. Returns 1 if one differs or is missing, else 0."""
    found = _exports(home / "reports" / f"{NAME}.csv")
    rows = [
        (ym, value, found.get(ym, "missing"), "yes" if found.get(ym) == value else "NO")
        for ym, value in _exports(published).items()
    ]
    same = sum(ok == "yes" for *_, ok in rows)
    print(f"\nexports, thousand yen:\n\n{table(('month', 'published', 'found', 'ok'), rows)}\n")
    print(f"{same} of {len(rows)} months are as published")
    return 0 if same == len(rows) else 1


def customs_files(folder: Path) -> dict[str, Path]:
    """The customs files in the folder or in its ``customs/``, by year. Files with other columns or of years that the
    domain does not have are left out. Raises CannotVerify."""
    if not folder.is_dir():
        raise CannotVerify(f"DIR={folder} is no folder")
    found: dict[str, Path] = {}
    for path in sorted([*folder.glob("*.csv"), *folder.glob("customs/*.csv")]):
        year = _year(path)
        if year in found:
            raise CannotVerify(f"{found[year]} and {path} both begin with {year}; expected is one file a year")
        if year in YEARS:
            found[year] = path
    if not found:
        raise CannotVerify(
            f"DIR={folder} has no customs CSV, nor has its customs/; expected is one file for each of the years "
            f"{', '.join(YEARS)} with the columns {','.join(LINE)}"
        )
    if absent := [year for year in YEARS if year not in found]:
        names = ", ".join(path.name for path in found.values())
        raise CannotVerify(f"DIR={folder} has no customs CSV that begins with {', '.join(absent)}; found are {names}")
    return found


def refuse_a_configured_catalog() -> None:
    """Raises CannotVerify where LAKEHOUSE_HOME alone does not decide which lake is filled."""
    if any(configuration()):
        raise CannotVerify(
            "the catalog `lake` is configured (PYICEBERG_CATALOG__LAKE__…, .pyiceberg.yaml), and the figures would be "
            "loaded into it; run `make verify-trade` where it is not"
        )


def _year(path: Path) -> str | None:
    """The year of the first line; None for a file without lines or with other columns."""
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        lines = csv.DictReader(file)
        first = next(lines, {})
        return first.get("Year") if tuple(lines.fieldnames or ()) == LINE else None


def _exports(path: Path) -> dict[str, str]:
    """Value by month, of a file with the report's columns."""
    with path.open(newline="") as file:
        return {row["ym"]: row["Value"] for row in csv.DictReader(file)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make verify-trade DIR=…", description=__doc__)
    parser.add_argument("folder", help="where the original customs files are")
    folder = parser.parse_args().folder
    try:
        if not folder:
            raise CannotVerify("DIR is missing: make verify-trade DIR=<the folder of the original customs files>")
        refuse_a_configured_catalog()
        return verify(customs_files(Path(folder)))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except EXPECTED as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
