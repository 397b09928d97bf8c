"""A rewrite lands on whatever its table has become, without a row changed: each rule of landing_rules.py, broken by
somebody who commits between the rewrite and its landing. Compaction end to end is in test_compact.py."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.avro.file import AvroFile
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import MonthTransform
from pyiceberg.typedef import Record
from pyiceberg.types import StringType

from lakehouse_assets.commit.landing import Landing, LandingRule, Proof
from lakehouse_assets.errors import PublishRefused
from lakehouse_assets.maintenance.rewrite.compact import compact
from lakehouse_assets.wire.work import Digest
from tests.support.forks import SCHEMA, SPEC, Daily, daily_rows
from tests.support.outsiders import (
    commit_deletes,
    equality_deletes,
    live,
    live_deletes,
    multiset,
    position_deletes,
)
from tests.support.rewrites import compacted, landed, rewritten, token

DAYS = ("2013-01-01", "2013-01-02", "2013-01-03")
FIRST, SECOND, THIRD = (f"day={day}" for day in DAYS)


@pytest.fixture
def fragments(daily: Daily) -> Daily:
    """Three days of three files each, of two rows each."""
    for carrier in ("AA", "BB", "CC"):
        daily.append(daily_rows(*DAYS, carrier=carrier, each=2))
    return daily


def fates(landing: Landing) -> dict[str, LandingRule | None]:
    return {unit.name: dropped and dropped.rule for unit, dropped in landing.units}


def files(daily: Daily, day: str) -> list[str]:
    """Paths of the day's live files, oldest first."""
    at = {str(day): n for n, day in enumerate(DAYS)}
    number = 15706 + at[day]  # days since 1970
    entries = sorted(live(daily.table), key=lambda e: e.sequence_number)
    return [e.data_file.file_path for e in entries if e.data_file.partition == Record(number)]


def day_tuple(day: str) -> Record:
    return Record(15706 + DAYS.index(day))


def overwrite(daily: Daily, *days: str, each: int = 5) -> None:
    """A normal run publishes these days."""
    name = "-".join(days)
    daily.publish(f"run-{name}", days, daily.stage(f"run-{name}", 0, days, daily_rows(*days, each=each)))


def all_land(landing: Landing) -> bool:
    return all(rule is None for rule in fates(landing).values())


def test_a_rewrite_lands_as_one_replace_snapshot(fragments: Daily) -> None:
    before, count = multiset(fragments.table), len(fragments.table.snapshots())
    landing = landed(fragments, *rewritten(fragments))
    assert fates(landing) == {FIRST: None, SECOND: None, THIRD: None}
    assert multiset(fragments.table) == before
    assert fragments.counts() == dict.fromkeys(DAYS, 6)
    assert len(fragments.table.snapshots()) == count + 1
    summary = fragments.table.current_snapshot().summary
    assert summary.operation is Operation.REPLACE
    assert {n: summary[n] for n in ("added-data-files", "deleted-data-files", "added-records", "deleted-records")} == {
        "added-data-files": "3",
        "deleted-data-files": "9",
        "added-records": "18",
        "deleted-records": "18",
    }
    assert (summary["total-data-files"], summary["total-records"]) == ("3", "18")


# C1: what is replaced is there


def test_a_partition_that_a_run_replaced_meanwhile_is_dropped_and_the_others_land(fragments: Daily) -> None:
    units = rewritten(fragments)
    overwrite(fragments, DAYS[1])
    before = multiset(fragments.table)
    assert fates(landed(fragments, *units)) == {FIRST: None, SECOND: LandingRule.CHANGED, THIRD: None}
    assert multiset(fragments.table) == before
    assert fragments.counts() == {**dict.fromkeys(DAYS, 6), DAYS[1]: 5}


def test_what_was_deleted_meanwhile_stays_deleted(fragments: Daily) -> None:
    units = rewritten(fragments, DAYS[0])
    fragments.table.delete(EqualTo("carrier", "AA"))  # copy on write: whole files
    before = multiset(fragments.table)
    landing = landed(fragments, *units)
    assert fates(landing) == {FIRST: LandingRule.CHANGED}
    assert landing.published is None
    assert multiset(fragments.table) == before


def test_a_file_that_came_back_as_new_is_not_what_was_read(daily: Daily) -> None:
    """Its deletes no longer apply to it: all its rows are back."""
    for carrier in ("AA", "BB"):
        daily.append(daily_rows(DAYS[0], carrier=carrier, each=2))
    path = files(daily, DAYS[0])[0]
    commit_deletes(daily.table, position_deletes(daily.table, {path: [0]}))
    units = rewritten(daily)
    daily.table.delete(EqualTo("carrier", "AA"))
    daily.table.add_files([path])
    before = multiset(daily.table)
    assert fates(landed(daily, *units)) == {FIRST: LandingRule.CHANGED}
    assert multiset(daily.table) == before
    assert before.total() == 4


def test_a_publish_that_was_staged_before_a_compaction_replaces_what_that_made(fragments: Daily) -> None:
    staged = fragments.stage("run", 0, DAYS[:1], daily_rows(DAYS[0], each=5))
    assert all_land(landed(fragments, *rewritten(fragments)))
    fragments.publish("run", DAYS[:1], staged)
    assert fragments.counts() == {**dict.fromkeys(DAYS, 6), DAYS[0]: 5}


def test_what_was_appended_meanwhile_stays_beside(fragments: Daily) -> None:
    units = rewritten(fragments)
    fragments.append(daily_rows(*DAYS, carrier="DD", each=4))
    before = multiset(fragments.table)
    assert all_land(landed(fragments, *units))
    assert multiset(fragments.table) == before
    assert len(live(fragments.table)) == 6


def test_of_two_compactions_of_one_partition_the_second_lands_nothing(fragments: Daily) -> None:
    first, second = rewritten(fragments), rewritten(fragments)
    before = multiset(fragments.table)
    assert all_land(landed(fragments, *first))
    head = fragments.table.current_snapshot().snapshot_id
    landing = landed(fragments, *second)
    assert set(fates(landing).values()) == {LandingRule.CHANGED}
    assert landing.published is None
    assert fragments.table.current_snapshot().snapshot_id == head, "no empty commit"
    assert multiset(fragments.table) == before


# C2: rows that were deleted meanwhile


@pytest.mark.parametrize(
    "kind", ["of one file", "of two files", "of a partition, without bounds", "of one file, in another partition"]
)
def test_rows_that_positions_deleted_meanwhile_stay_deleted(fragments: Daily, kind: str) -> None:
    units = rewritten(fragments, *DAYS[:2])
    first, second, _ = files(fragments, DAYS[0])
    where = {first: [0], second: [1]} if kind == "of two files" else {first: [0]}
    elsewhere = day_tuple(DAYS[2]) if "another" in kind else None
    delete = position_deletes(fragments.table, where, bounds="without" not in kind, partition=elsewhere)
    commit_deletes(fragments.table, delete)
    before = multiset(fragments.table)

    assert fates(landed(fragments, *units)) == {FIRST: LandingRule.DELETED, SECOND: None}

    assert multiset(fragments.table) == before
    assert fragments.table.scan().to_arrow().num_rows == 18 - len(where)


def test_positions_in_a_file_that_is_not_replaced_are_no_obstacle(fragments: Daily) -> None:
    units = rewritten(fragments)
    fragments.append(daily_rows(DAYS[0], carrier="DD", each=2))
    commit_deletes(fragments.table, position_deletes(fragments.table, {files(fragments, DAYS[0])[-1]: [0]}))
    before = multiset(fragments.table)
    assert all_land(landed(fragments, *units))
    assert multiset(fragments.table) == before
    assert before.total() == 19


# C3: rows that equal something are deleted meanwhile


def test_rows_that_were_deleted_by_equality_meanwhile_stay_deleted(fragments: Daily) -> None:
    units = rewritten(fragments)
    commit_deletes(fragments.table, equality_deletes(fragments.table, "carrier", ["BB"], day_tuple(DAYS[0])))
    before = multiset(fragments.table)
    assert before.total() == 16
    assert all_land(landed(fragments, *units))
    assert multiset(fragments.table) == before


def test_added_files_have_the_sequence_number_of_the_base(fragments: Daily) -> None:
    units = rewritten(fragments, DAYS[0])
    number = fragments.table.current_snapshot().sequence_number
    fragments.append(daily_rows("2013-02-01"))
    landed(fragments, *units)
    (entry,) = [e for e in live(fragments.table) if e.data_file.partition == day_tuple(DAYS[0])]
    assert (entry.sequence_number, entry.file_sequence_number) == (number, number + 2)


# C4, C5: delete files


def test_deletes_that_were_applied_go_with_their_partition(fragments: Daily) -> None:
    one = position_deletes(fragments.table, {files(fragments, DAYS[0])[0]: [0]})
    two = position_deletes(fragments.table, {files(fragments, DAYS[1])[0]: [0], files(fragments, DAYS[1])[1]: [1]})
    commit_deletes(fragments.table, one, two)
    before = multiset(fragments.table)
    units = rewritten(fragments)
    assert [len(unit.deletes) for unit in units] == [1, 1, 0]
    fragments.append(daily_rows(DAYS[0], each=2))
    overwrite(fragments, DAYS[1])

    assert fates(landed(fragments, *units)) == {FIRST: None, SECOND: LandingRule.CHANGED, THIRD: None}

    before = multiset(fragments.table)
    assert [e.data_file.file_path for e in live_deletes(fragments.table)] == [two.file_path]
    assert multiset(fragments.table) == before
    assert fragments.counts()[DAYS[0]] == 7
    summary = fragments.table.current_snapshot().summary
    assert (summary["removed-delete-files"], summary["removed-position-deletes"]) == ("1", "1")


@pytest.mark.parametrize("bounds", [True, False], ids=["bounds", "no bounds"])
def test_deletes_that_another_file_needs_stay(fragments: Daily, bounds: bool) -> None:
    old, other, _ = files(fragments, DAYS[0])
    commit_deletes(fragments.table, position_deletes(fragments.table, {old: [0], other: [1]}, bounds=bounds))
    before = multiset(fragments.table)
    assert all_land(landed(fragments, *rewritten(fragments, DAYS[0], without=other)))
    assert multiset(fragments.table) == before
    assert len(live_deletes(fragments.table)) == 1
    assert len(files(fragments, DAYS[0])) == 2
    assert all_land(landed(fragments, *rewritten(fragments, DAYS[0])))
    assert multiset(fragments.table) == before
    assert not live_deletes(fragments.table), "now nothing needs them"


def test_deletes_are_not_kept_for_the_files_that_were_made_of_them(fragments: Daily) -> None:
    """These have the sequence number of the base, which is that of the deletes."""
    where = {path: [0] for path in files(fragments, DAYS[0])}
    commit_deletes(fragments.table, position_deletes(fragments.table, where, bounds=False))
    before = multiset(fragments.table)
    assert all_land(landed(fragments, *rewritten(fragments)))
    assert multiset(fragments.table) == before
    assert not live_deletes(fragments.table)


def test_deletes_that_only_newer_files_follow_go(fragments: Daily) -> None:
    where = {path: [0] for path in files(fragments, DAYS[0])}
    commit_deletes(fragments.table, position_deletes(fragments.table, where, bounds=False))
    fragments.append(daily_rows(DAYS[0], carrier="DD", each=2))
    newest = files(fragments, DAYS[0])[-1]
    before = multiset(fragments.table)
    assert all_land(landed(fragments, *rewritten(fragments, DAYS[0], without=newest)))
    assert multiset(fragments.table) == before
    assert not live_deletes(fragments.table)


def test_a_partition_whose_rows_were_all_deleted_is_replaced_by_nothing(fragments: Daily) -> None:
    where = {path: [0, 1] for path in files(fragments, DAYS[0])}
    commit_deletes(fragments.table, position_deletes(fragments.table, where))
    before = multiset(fragments.table)
    landing = landed(fragments, *rewritten(fragments, DAYS[0]))
    assert all_land(landing)
    assert landing.units[0][0].added == ()
    assert multiset(fragments.table) == before
    assert not files(fragments, DAYS[0])
    assert not live_deletes(fragments.table)


def test_delete_manifests_are_carried_over_as_they_are(fragments: Daily) -> None:
    commit_deletes(fragments.table, equality_deletes(fragments.table, "carrier", ["BB"], day_tuple(DAYS[2])))
    before = delete_manifests(fragments)
    assert all_land(landed(fragments, *rewritten(fragments, DAYS[0])))
    assert delete_manifests(fragments) == before != []


def test_a_delete_manifest_that_must_be_written_can_be_read_by_java(fragments: Daily) -> None:
    positions = position_deletes(fragments.table, {files(fragments, DAYS[0])[0]: [0]})
    values = equality_deletes(fragments.table, "carrier", ["BB"], day_tuple(DAYS[2]))
    commit_deletes(fragments.table, positions, values)
    before, old = multiset(fragments.table), delete_manifests(fragments)

    assert all_land(landed(fragments, *rewritten(fragments, DAYS[0])))

    assert multiset(fragments.table) == before
    written = delete_manifests(fragments)
    assert len(written) == 2, "one of what went, one of what stays"
    assert not {*written} & {*old}, "one of what went, one of what stays"
    for path in written:
        with AvroFile(fragments.table.io.new_input(path)) as reader:
            meta = reader.header.meta
        data_file = next(f for f in json.loads(meta["avro.schema"])["fields"] if f["name"] == "data_file")
        ids = next(f for f in data_file["type"]["fields"] if f["name"] == "equality_ids")
        assert [kind["items"] for kind in ids["type"] if kind != "null"] == ["int"]
        assert meta["content"] == "deletes"
    (kept,) = live_deletes(fragments.table)
    assert (kept.data_file.equality_ids, kept.status) == ([2], ManifestEntryStatus.EXISTING)


def delete_manifests(daily: Daily) -> list[str]:
    manifests = daily.table.current_snapshot().manifests(daily.table.io)
    return [m.manifest_path for m in manifests if m.content is ManifestContent.DELETES]


# C6, C7: what is added


def test_a_file_that_is_on_the_table_already_is_not_added_again(fragments: Daily) -> None:
    units = rewritten(fragments)
    fragments.table.add_files([units[0].added[0].file_path])
    before = multiset(fragments.table)
    assert fates(landed(fragments, *units)) == {FIRST: LandingRule.LANDED, SECOND: None, THIRD: None}
    assert multiset(fragments.table) == before


def test_entries_carry_the_landings_own_snapshot(fragments: Daily) -> None:
    old = {e.data_file.file_path: e.snapshot_id for e in live(fragments.table)}
    landing = landed(fragments, *rewritten(fragments, DAYS[0]))
    table, snapshot_id = fragments.table, landing.published.snapshot_id
    entries = [
        entry
        for manifest in table.current_snapshot().manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        if entry.snapshot_id == snapshot_id or entry.status is not ManifestEntryStatus.DELETED
    ]
    by_status = {s: [e for e in entries if e.status is s] for s in ManifestEntryStatus}
    assert [e.snapshot_id for e in by_status[ManifestEntryStatus.ADDED]] == [snapshot_id]
    assert [e.snapshot_id for e in by_status[ManifestEntryStatus.DELETED]] == [snapshot_id] * 3
    assert {
        e.data_file.file_path: e.snapshot_id for e in by_status[ManifestEntryStatus.EXISTING]
    }.items() <= old.items()


# C8: what the table has become


def drop_and_create(daily: Daily) -> None:
    daily.catalog.drop_table(daily.identifier)
    daily.catalog.create_table(daily.identifier, SCHEMA, partition_spec=SPEC)
    daily.append(daily_rows(*DAYS))


def drop_column(daily: Daily) -> None:
    with daily.table.update_schema() as update:
        update.delete_column("carrier")


def add_required_column(daily: Daily) -> None:
    with daily.table.update_schema(allow_incompatible_changes=True) as update:
        update.add_column("tail", StringType(), required=True)


def nest_column(daily: Daily) -> None:
    with daily.table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("flights")
    with daily.table.update_schema() as update:
        update.add_column("flights", StringType())


@pytest.mark.parametrize("change", [drop_and_create, drop_column, add_required_column, nest_column])
def test_nothing_lands_on_a_table_that_changed_its_kind(fragments: Daily, change: Callable[[Daily], None]) -> None:
    units = rewritten(fragments)
    change(fragments)
    before = sorted(e.data_file.file_path for e in live(fragments.table))
    landing = landed(fragments, *units)
    assert set(fates(landing).values()) == {LandingRule.EVOLVED}
    assert landing.published is None
    assert sorted(e.data_file.file_path for e in live(fragments.table)) == before


def test_a_rewrite_lands_beside_harmless_changes_of_columns(fragments: Daily) -> None:
    units = rewritten(fragments)
    with fragments.table.update_schema(allow_incompatible_changes=True) as update:
        update.add_column("tail", StringType())
        update.rename_column("carrier", "airline")
        update.make_column_optional("day")
    assert all_land(landed(fragments, *units))
    rows = fragments.table.scan(EqualTo("airline", "AA")).to_arrow()
    assert rows.num_rows == 6
    assert rows["tail"].null_count == 6


def test_a_rewrite_lands_under_its_own_spec_when_the_table_has_another(fragments: Daily) -> None:
    units = rewritten(fragments)
    with fragments.table.update_spec() as update:
        update.remove_field("day")
        update.add_field("day", MonthTransform(), "month")
        update.add_identity("carrier")
    fragments.add_file(daily_rows(DAYS[0], carrier="DD"))
    assert all_land(landed(fragments, *units))
    assert fragments.table.scan(EqualTo("day", DAYS[0])).to_arrow().num_rows == 7
    assert {e.data_file.spec_id for e in live(fragments.table)} == {0, 1}
    assert fragments.table.current_snapshot().summary["total-data-files"] == "4"


# C10: who claims what


def test_no_two_units_claim_one_file(fragments: Daily) -> None:
    first, second = rewritten(fragments, DAYS[0]), rewritten(fragments, DAYS[0])
    before = multiset(fragments.table)
    with pytest.raises(PublishRefused, match=r"3 files are removed or added more than once"):
        landed(fragments, *first, *second)
    twice = replace(second[0], removed=rewritten(fragments, DAYS[1])[0].removed, added=first[0].added)
    with pytest.raises(PublishRefused, match=r"1 files are removed or added more than once"):
        landed(fragments, *first, twice)
    assert multiset(fragments.table) == before


# C11: what is in storage


@pytest.mark.parametrize("which", ["added", "removed"])
def test_a_unit_with_a_file_that_is_gone_is_dropped(fragments: Daily, which: str) -> None:
    units = rewritten(fragments)
    file = units[0].added[0] if which == "added" else units[0].removed[0].data_file
    fragments.table.io.delete(file.file_path)
    assert fates(landed(fragments, *units)) == {FIRST: LandingRule.MISSING, SECOND: None, THIRD: None}
    assert file.file_path in files(fragments, DAYS[0]) or which == "added"


def test_files_are_looked_for_at_every_attempt(fragments: Daily) -> None:
    units, commit = rewritten(fragments), fragments.catalog.commit_table
    before = multiset(fragments.table)

    def fails(*_: Any) -> Any:
        fragments.catalog.commit_table = commit
        fragments.table.io.delete(units[1].added[0].file_path)
        raise CommitFailedException("somebody else was faster")

    fragments.catalog.commit_table = fails
    landing = landed(fragments, *units)
    assert fates(landing) == {FIRST: None, SECOND: LandingRule.MISSING, THIRD: None}
    assert landing.published.attempts == 2
    assert multiset(fragments.table) == before


# Not in the rules that were found first: a table whose history was turned back


def test_rows_that_a_rollback_brought_back_stay(fragments: Daily) -> None:
    """The files that are replaced are all there, and nothing was deleted since: but what was deleted before is back."""
    before_delete = fragments.table.current_snapshot().snapshot_id
    commit_deletes(fragments.table, position_deletes(fragments.table, {files(fragments, DAYS[0])[0]: [0]}))
    units = rewritten(fragments)
    fragments.table.manage_snapshots().rollback_to_snapshot(before_delete).commit()
    before = multiset(fragments.table)
    assert before.total() == 18
    assert fates(landed(fragments, *units)) == {FIRST: LandingRule.RESTORED, SECOND: None, THIRD: None}
    assert multiset(fragments.table) == before


@pytest.mark.parametrize("kind", ["positions", "values"])
def test_rows_that_another_history_deleted_stay_deleted(fragments: Daily, kind: str) -> None:
    """The deletes are older than the base, which never saw them."""
    root = fragments.table.current_snapshot().snapshot_id
    if kind == "positions":
        delete = position_deletes(fragments.table, {files(fragments, DAYS[0])[0]: [0, 1]})
    else:
        delete = equality_deletes(fragments.table, "carrier", ["BB"], day_tuple(DAYS[0]))
    commit_deletes(fragments.table, delete)
    other = fragments.table.current_snapshot().snapshot_id
    fragments.table.manage_snapshots().create_branch(other, "other").commit()
    fragments.table.manage_snapshots().rollback_to_snapshot(root).commit()
    fragments.append(daily_rows("2013-02-01"))
    units = rewritten(fragments)
    fragments.table.manage_snapshots().set_current_snapshot(ref_name="other").commit()
    before = multiset(fragments.table)
    assert before.total() == 16
    assert fates(landed(fragments, *units)) == {FIRST: LandingRule.DELETED, SECOND: None, THIRD: None}
    assert multiset(fragments.table) == before


# The proof


def test_a_unit_without_its_proof_never_lands(fragments: Daily) -> None:
    first, second, third = rewritten(fragments)
    wrong = replace(second, proof=Proof(second.proof.before, second.proof.after._replace(xor=1)))
    short = replace(third, proof=Proof(Digest(rows=5), Digest(rows=5)))  # both sides lost the same row
    before = multiset(fragments.table)
    landing = landed(fragments, first, wrong, short)
    assert fates(landing) == {FIRST: None, SECOND: LandingRule.UNPROVED, THIRD: LandingRule.UNPROVED}
    assert [unit for unit, dropped in landing.units if dropped] == [wrong, short]
    assert multiset(fragments.table) == before


# One landing, however often it is tried


def test_a_repeated_landing_changes_nothing(fragments: Daily) -> None:
    units = rewritten(fragments)
    overwrite(fragments, DAYS[1])
    first = landed(fragments, *units, text="compaction")
    fragments.append(daily_rows(DAYS[0]))
    head = fragments.table.current_snapshot().snapshot_id

    again = landed(fragments, *units, text="compaction")

    assert again.published.repeated
    assert again.published.snapshot_id == first.published.snapshot_id
    assert fates(first) == {FIRST: None, SECOND: LandingRule.CHANGED, THIRD: None}
    assert all(dropped for _, dropped in again.units), "it landed nothing itself"
    assert fragments.table.current_snapshot().snapshot_id == head


def test_a_commit_that_comes_first_costs_an_attempt_and_what_it_changed(fragments: Daily) -> None:
    units, commit = rewritten(fragments), fragments.catalog.commit_table
    staged = fragments.stage("run", 0, DAYS[:1], daily_rows(DAYS[0], each=5))

    def late(*arguments: Any) -> Any:
        fragments.catalog.commit_table = commit
        fragments.publish("run", DAYS[:1], staged)
        return commit(*arguments)

    fragments.catalog.commit_table = late
    landing = landed(fragments, *units)
    assert fates(landing) == {FIRST: LandingRule.CHANGED, SECOND: None, THIRD: None}
    assert landing.published.attempts == 2
    assert fragments.counts() == {**dict.fromkeys(DAYS, 6), DAYS[0]: 5}


def test_compactions_and_runs_at_once_change_no_row_and_fail_no_run(
    daily: Daily, catalog_properties: dict[str, str]
) -> None:
    days = [f"2013-03-{n:02}" for n in range(1, 7)]
    for carrier in ("AA", "BB", "CC"):
        daily.append(daily_rows(*days, carrier=carrier, each=2))
    staged = {day: daily.stage(f"run-{day}", 0, [day], daily_rows(day, each=5)) for day in days[:3]}

    def own() -> Daily:
        return Daily(load_catalog("lake", **catalog_properties), daily.identifier)

    def run(day: str) -> None:
        own().publish(f"run-{day}", [day], staged[day])

    def compaction(part: int) -> None:
        compacted(own(), *days[part::2])

    with ThreadPoolExecutor(5) as pool:
        futures = [pool.submit(compaction, n) for n in range(2)] + [pool.submit(run, day) for day in staged]
        for future in futures:
            future.result()
    assert daily.counts() == {**dict.fromkeys(days, 6), **dict.fromkeys(staged, 5)}
    quiet = [e for e in live(daily.table) if e.data_file.partition[0] >= 15765 + 3]
    assert len(quiet) == 3, "the days that no run replaced are compacted"


class Dies(SqlCatalog):
    """SIGKILLs its process at the commit, before or after it lands."""

    landed: bool

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> Any:
        if self.landed:
            super().commit_table(table, requirements, updates)
        os.kill(os.getpid(), signal.SIGKILL)


def compact_and_die(sqlite: Mapping[str, str], identifier: str, landed: bool) -> None:
    catalog = Dies("lake", **sqlite)
    catalog.landed = landed
    compact(catalog, identifier, token("compaction"), min_input_files=2)


@pytest.mark.server
@pytest.mark.parametrize("landed", [False, True], ids=["before the commit", "after the commit"])
def test_a_killed_compaction_is_taken_up_by_the_next(tmp_path: Path, landed: bool) -> None:
    sqlite = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": tmp_path.as_uri()}
    daily = Daily.create(load_catalog("lake", **sqlite))
    for carrier in ("AA", "BB"):
        daily.append(daily_rows(*DAYS, carrier=carrier))
    before = multiset(daily.table)
    process = multiprocessing.get_context("spawn").Process(
        target=compact_and_die, args=(sqlite, daily.identifier, landed)
    )
    process.start()
    process.join(300)
    assert process.exitcode == -signal.SIGKILL
    assert multiset(daily.table) == before
    report = compacted(daily, text="compaction")
    assert (report.snapshot_id, not report.partitions) == (daily.table.current_snapshot().snapshot_id, landed)
    assert len(daily.table.snapshots()) == 3
    assert len(live(daily.table)) == 3
    assert multiset(daily.table) == before
