"""Generated lakes through passes of the collector: no live file is touched, and nearly every orphan is found.
The truth is PyIceberg's own; how lakes are generated is in tests/support/lakes.py."""

from __future__ import annotations

import os
import time
from itertools import islice
from pathlib import Path

import pytest

from lakehouse_assets.errors import StorageRefused
from tests.support.collected import TestSite, local_site
from tests.support.lakes import GeneratedLake, generate, live_files

LAKES = int(os.environ.get("LAKEHOUSE_TEST_LAKES", "200"))  # a second to two each
SHARDS = [range(start, start + 10) for start in range(0, LAKES, 10)]
IN_CI = 1
# One pass marks, the next takes what was marked and the receipts of dead runs, the third what these had staged.
PASSES = (0.0, 3.1, 6.2)


def generated(folder: Path, seed: int) -> tuple[TestSite, GeneratedLake]:
    site = local_site(folder)
    lake = generate(site.catalog, folder, seed, round(time.time() * 1000))
    site.runs = lake.runs
    return site, lake


def collect_all(site: TestSite, lake: GeneratedLake) -> None:
    """All passes over all tables. Commits come between the first two, and within the second, which lists twice."""
    late = iter(lake.late)

    def commit() -> None:
        for change in islice(late, 1):
            change()

    for days in PASSES:
        site.days = days
        for table in lake.tables:
            if lake.chance(0.2):
                site.cut = True
                with pytest.raises(StorageRefused):
                    site.pass_over(table.identifier)
                site.cut = False
            site.listed = commit if days else site.listed
            report = site.pass_over(table.identifier)
            assert bool(report.problems) == (table.identifier in lake.skipped), (lake.notes, report.problems)
        lost = {path for path in live_in(lake) | lake.spared if not path.exists()}
        assert not lost, f"seed {lake.seed}, after {days} days: {lake.notes}: {lost}"
        for _ in lake.late[::2]:
            commit()


def live_in(lake: GeneratedLake) -> set[Path]:
    return {path for table in lake.tables for path in live_files(table.table)}


@pytest.mark.slow("The rule that no live file goes, over ten generated lakes.")
@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(
            s,
            id=f"from-{s.start}",
            marks=[pytest.mark.long("As many lakes as there is time for; the first ones are in `make test`.")]
            if n >= IN_CI
            else [],
        )
        for n, s in enumerate(SHARDS)
    ],
)
def test_no_live_file_is_touched_and_orphans_are_found(tmp_path: Path, seeds: range) -> None:
    found = missed = 0
    for seed in seeds:
        site, lake = generated(tmp_path / str(seed), seed)
        collect_all(site, lake)
        orphans = lake.all_orphans()
        left = {path for path in orphans if path.exists()}
        found, missed = found + len(orphans) - len(left), missed + len(left)
    assert found >= 0.99 * (found + missed), f"{missed} of {found + missed} orphans were not found"
    assert found > 20, "or these lakes have too little to be found"
