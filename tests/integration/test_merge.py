"""Merges from step to table: what is inserted, updated and deleted, what is refused, and what others do meanwhile.
Real Spark, one for all tests."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest

from lakehouse_assets.declare.modes import Append, Merge, Overwrite, Rewrites, Tuning
from lakehouse_assets.declare.table import OnLayoutChange
from tests.conftest import Lake, failure_text
from tests.support.faults import from_failure
from tests.support.merges import PLAIN, REWRITES, found, give, logged, merged, others, row, seed, table
from tests.support.tables import DAYS
from tests.support.twins import twins

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("inline")]


@pytest.mark.slow("The first of its file starts Spark.")
@pytest.mark.parametrize("rewrites", Rewrites)
def test_changes_insert_update_and_delete_rows(lake: Lake, rewrites: Rewrites) -> None:
    of = table(Merge(["id"], delete_when="op = 'D'", order_by="at", rewrites=rewrites))
    give(lake, *(row(id, 0) for id in range(10)))
    assert lake.run(of).success
    give(lake, row(1, 1), row(2, 2, op="D"), row(3, 3, day="2024-01-02"), row(11, 11), row(12, 12, op="D"), row(4, 0))
    result = lake.run(of)
    assert result.success
    expected = {id: ("2024-01-01", 0) for id in range(10) if id != 2}
    assert found(lake, of) == expected | {1: ("2024-01-01", 1), 3: ("2024-01-02", 3), 11: ("2024-01-01", 11)}
    assert lake.snapshots(of) == 2
    summary = lake.table(of).current_snapshot().summary
    assert bool(int(summary["total-delete-files"])) is (rewrites is Rewrites.MERGE_ON_READ)
    assert merged(result) == {"changes": 6, "left_out": 0, "matched": 4, "inserted": 1, "updated": 2, "deleted": 1}


def test_a_merge_whose_rows_others_changed_is_staged_again_on_what_is_there_now(lake: Lake) -> None:
    of = table(step="tests.support.change_steps:rows_while_others_write")
    seed(lake, of, row(1, 1), row(9, 1))
    others(lake, row(5, 7))
    give(lake, row(1, 2, at=2), row(5, 8, at=2), row(9, 2, at=2))
    result = lake.run(of)
    assert result.success
    assert {id: n for id, (_, n) in found(lake, of).items()} == {1: 2, 5: 8, 9: 2}
    assert "staged again" in logged(lake, result)


def test_a_merge_into_an_empty_table_is_staged_again_where_others_give_it_rows_meanwhile(lake: Lake) -> None:
    of = table(step="tests.support.change_steps:rows_while_others_write")
    others(lake, row(5, 7))  # into the table that the run has created
    give(lake, row(1, 2), row(5, 8, at=2))
    result = lake.run(of)
    assert result.success
    assert found(lake, of) == {1: ("2024-01-01", 2), 5: ("2024-01-01", 8)}
    assert "staged again" in logged(lake, result)
    assert merged(result) == {"changes": 2, "left_out": 0, "matched": 1, "inserted": 1, "updated": 1, "deleted": 0}


def test_a_merge_lands_beside_what_others_did_elsewhere(lake: Lake) -> None:
    of = table(step="tests.support.change_steps:rows_while_others_write")
    seed(lake, of, row(1, 1), row(9, 1))
    others(lake, row(50, 7))
    give(lake, row(1, 2, at=2), row(9, 2, at=2))
    result = lake.run(of)
    assert result.success
    assert {id: n for id, (_, n) in found(lake, of).items()} == {1: 2, 9: 2, 50: 7}
    assert "staged again" not in logged(lake, result)


@pytest.mark.long("Is staged again until it gives up; the test of one such time stays.")
def test_a_merge_that_others_never_leave_alone_ends_with_an_error_and_changes_nothing(lake: Lake) -> None:
    of = table(step="tests.support.change_steps:rows_while_others_write")
    others(lake)
    give(lake, row(1, 1), row(9, 1))
    assert lake.run(of).success
    others(lake, *(row(9, n) for n in range(9)))
    give(lake, row(1, 2, at=2), row(9, 2, at=2))
    result = lake.run(of)
    assert not result.success
    assert "may contain the same rows were added meanwhile" in failure_text(result)
    assert [row["n"] for row in lake.rows(of).to_pylist() if row["id"] == 1] == [1]
    told = [line for line in logged(lake, result).splitlines() if "staged again" in line or "waiting until" in line]
    assert ["waiting until no other merge of the table is landing" in line for line in told] == [
        False,
        False,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("keys", "changes", "problem"),
    twins(
        [
            (
                ["id"],
                [row(1, 1), row(1, 2)],
                "some keys have several changes with the same at, such as id=1",
            ),
            (["id"], [row(1, 1), row(None, 2)], "1 changes have no key, such as id=None"),
            (["id", "day"], [row(1, 1), row(2) | {"day": None}], "1 changes have no key, such as id=2, day=None"),
            (["id"], [row(None, 1, op="D"), row(None, 2)], "2 changes have no key, such as id=None; id=None"),
        ],
        "What changes say is counted in one pass.",
    ),
    ids=["twice", "no key", "half a key", "no keys, and one deletes"],
)
def test_changes_that_say_nothing_clear_are_refused_with_examples(
    lake: Lake, keys: list[str], changes: list[dict[str, Any]], problem: str
) -> None:
    of = table(Merge(keys, delete_when="op = 'D'", order_by="at"))
    give(lake, *changes)
    result = lake.run(of)
    assert not result.success
    assert problem in failure_text(result)
    assert not lake.snapshots(of)


def test_the_latest_of_several_changes_counts_and_repetitions_do_no_harm(lake: Lake) -> None:
    of = table()
    gone = [row(3, 5), row(3, 5, op="D", at=9)]
    give(lake, row(1, 1, at=1), row(1, 3, at=3), row(1, 2, at=2), row(2, 1), row(2, 1), *gone)
    result = lake.run(of)
    assert result.success
    assert found(lake, of) == {1: ("2024-01-01", 3), 2: ("2024-01-01", 1)}
    assert lake.run(of).success
    assert found(lake, of) == {1: ("2024-01-01", 3), 2: ("2024-01-01", 1)}


def test_no_changes_change_nothing(lake: Lake) -> None:
    of = table()
    give(lake)
    assert lake.run(of).success
    seed(lake, of, row(1, 1))
    assert lake.run(of).success
    assert found(lake, of) == {1: ("2024-01-01", 1)}


@pytest.mark.parametrize("rewrites", REWRITES)
def test_to_delete_only_what_is_not_there_changes_nothing(lake: Lake, rewrites: Rewrites) -> None:
    of = table(Merge(["id"], delete_when="op = 'D'", order_by="at", rewrites=rewrites))
    gone = [row(5, op="D"), row(6, op="D", day="2024-02-01")]
    give(lake, *gone)
    assert lake.run(of).success
    assert found(lake, of) == {}
    seed(lake, of, row(1, 1), row(9, 9))
    result = lake.run(of)
    assert result.success
    assert found(lake, of) == {1: ("2024-01-01", 1), 9: ("2024-01-01", 9)}
    assert merged(result) == {"changes": 2, "left_out": 0, "matched": 0, "inserted": 0, "updated": 0, "deleted": 0}


@pytest.mark.parametrize("rewrites", REWRITES)
def test_changes_that_leave_all_rows_as_they_are_leave_their_files_too(lake: Lake, rewrites: Rewrites) -> None:
    of = table(Merge(["id"], rewrites=rewrites))
    seed(lake, of, row(1, 1), row(2, 2))
    give(lake, row(1, 1), row(2, 2), columns=PLAIN)
    files = {task.file.file_path for task in lake.table(of).scan().plan_files()}
    result = lake.run(of)
    assert result.success
    assert {task.file.file_path for task in lake.table(of).scan().plan_files()} == files
    assert merged(result) == {"changes": 2, "left_out": 0, "matched": 2, "inserted": 0, "updated": 0, "deleted": 0}


@pytest.mark.slow("The only merge by several workers.")
def test_workers_share_a_merge_by_partition_and_land_once(lake: Lake) -> None:
    days = ["2024-01-01", "2024-01-02"]
    mode = Merge(["id", "day"], delete_when="op = 'D'", order_by="at", by_partition=True)
    of = table(mode, partitions=DAYS, partitions_per_worker=1)
    for changes in (
        [row(id, 0, day) for id in (1, 2) for day in days],
        [row(1, 7, days[0]), row(2, op="D", day=days[1]), row(3, 3, days[1])],
    ):
        give(lake, *(change | {"key": change["day"]} for change in changes))
        result = lake.run(of, *days)
        assert result.success, failure_text(result)
    found = {(str(r["day"]), r["id"]): r["n"] for r in lake.rows(of).to_pylist()}
    assert found == {(days[0], 1): 7, (days[0], 2): 0, (days[1], 1): 0, (days[1], 3): 3}
    assert lake.snapshots(of) == 2


def test_a_table_that_was_backfilled_by_its_own_partitions_takes_changes_by_the_days_of_these(lake: Lake) -> None:
    extract, days = table(Overwrite(), partitions=DAYS, partitions_per_worker=1), ["2024-01-01", "2024-01-02"]
    give(lake, *(row(n, 0, day) | {"key": day} for n, day in enumerate(days * 2)), columns=PLAIN)
    assert lake.run(extract, *days).success
    later = dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-01-03")
    of, on = table(partitions=later), [{"key": day} for day in later.get_partition_keys()]
    moved, changes = row(1, 5, days[0], at=2), [row(0, 7, days[0]), row(1, 4, days[1]), row(2, op="D"), row(9, 9)]
    give(lake, *(change | on[0] for change in changes), moved | on[1])
    result = lake.run(of, *later.get_partition_keys())
    assert result.success, failure_text(result)
    assert found(lake, of) == {0: (days[0], 7), 1: (days[0], 5), 3: (days[1], 0), 9: (days[0], 9)}
    assert lake.snapshots(of) == 2


@pytest.mark.parametrize("rewrites", REWRITES)
@pytest.mark.parametrize("op", twins(["U", "D"], "Deletes find their rows as updates do."))
def test_a_merge_by_partition_changes_no_row_of_others(lake: Lake, rewrites: Rewrites, op: str) -> None:
    days = ["2024-01-01", "2024-01-02"]
    mode = Merge(["id", "day"], delete_when="op = 'D'", order_by="at", by_partition=True, rewrites=rewrites)
    of = table(mode, partitions=DAYS)
    seed(lake, of, *(row(1, 0, day) for day in days))
    give(lake, row(1, 7, days[0]), row(1, 7, days[1], op=op))
    result = lake.run(of, days[0])
    assert "outside its partitions" in failure_text(result)
    assert {(str(r["day"]), r["n"]) for r in lake.rows(of).to_pylist()} == {(day, 0) for day in days}


@pytest.mark.parametrize(
    ("options", "problem"),
    twins(
        [
            (
                {"checks": {"no negative n": "n >= 0"}},
                "1 rows fail the check 'no negative n' (n >= 0), such as id=1,",
            ),
            ({"checks": {"own": "tests.support.change_steps:not_negative"}}, "1 rows fail the check 'own'"),
            (
                {"write_mode": Merge(["id"], at_most_changed=0.1)},
                "updates 1 and deletes 0 of 5 rows; the declaration allows at most 10.000%",
            ),
        ],
        "How often each fails is counted in one pass.",
    ),
    ids=["condition", "function", "share of the rows"],
)
def test_what_is_declared_of_the_rows_is_audited_before_they_land(
    lake: Lake, options: dict[str, Any], problem: str
) -> None:
    of = table(**{"write_mode": Merge(["id"])} | options)
    seed(lake, of, *(row(id, id) for id in range(5)))
    give(lake, row(1, -5), row(7, None), columns=PLAIN)
    result = lake.run(of)
    assert not result.success
    assert problem in failure_text(result)
    assert len(found(lake, of)) == 5


@pytest.mark.parametrize(
    ("check", "problem"), [("nosuch(n) >= 0", "Cannot resolve routine `nosuch`"), ("n >>>> (", "Syntax error")]
)
def test_a_check_that_cant_be_evaluated_is_named(lake: Lake, check: str, problem: str) -> None:
    give(lake, row(1, 1), columns=PLAIN)
    for mode in (Append(), Merge(["id"])):
        text = failure_text(lake.run(table(mode, checks={"fine": "n > 0", "wrong": check})))
        assert f"the check 'wrong' ({check}) can't be evaluated: " in text
        assert problem in text


def test_it_is_named_before_the_step_reads_anything(lake: Lake) -> None:
    """Nothing lies where the step reads."""
    text = failure_text(lake.run(table(Append(), checks={"wrong": "text rlike '('"})))
    assert "table demo.rows" in text
    assert "the check 'wrong' (text rlike '(') can't be evaluated: " in text
    assert "if you change the step or the declaration, re-execute from failure" in text


def test_so_is_a_delete_when_that_no_columns_make_right(lake: Lake) -> None:
    """Nothing lies where the step reads."""
    text = failure_text(lake.run(table(Merge(["id"], delete_when="nosuch(op)", order_by="at"))))
    assert "delete_when (nosuch(op)) can't be evaluated: " in text


@pytest.mark.parametrize(
    ("delete_when", "problem"),
    [("kind = op", "with name `kind` cannot be resolved"), ("n + length(op)", "DATATYPE_MISMATCH")],
)
def test_so_is_a_delete_when(lake: Lake, delete_when: str, problem: str) -> None:
    give(lake, row(1, 1, op="U"))
    text = failure_text(lake.run(table(Merge(["id"], delete_when=delete_when, order_by="at"))))
    assert f"delete_when ({delete_when}) can't be evaluated: " in text
    assert problem in text


@pytest.mark.long("test_sql_conditions.py parses comments without Spark.")
def test_a_comment_ends_a_condition(lake: Lake) -> None:
    give(lake, row(1, 1), row(2, 1, op="D"))
    of = table(Merge(["id"], delete_when="op = 'D' -- deleted at the source"), checks={"fine": "n > 0 -- above"})
    assert lake.run(of).success
    assert set(found(lake, of)) == {1}


@pytest.mark.parametrize(
    "check", twins(["n >= 0", "tests.support.change_steps:not_negative"], "Merges have both kinds of checks.")
)
def test_rows_that_are_appended_are_checked_too(lake: Lake, check: str) -> None:
    of = table(Append(), checks={"no negative n": check})
    seed(lake, of, row(1, 1), row(2, None))
    give(lake, row(3, -5), columns=PLAIN)
    assert f"1 rows fail the check 'no negative n' ({check}), such as id=3," in failure_text(lake.run(of))
    assert set(found(lake, of)) == {1, 2}


def test_text_that_would_hide_other_rows_from_filters_does_not_land(lake: Lake) -> None:
    """Byte FB, and in the file's bound U+FFFD: below some text that is below FB."""
    of = table(Append(), step="tests.support.change_steps:rows_in_latin_1")
    give(lake, row(1, 1) | {"text": "plain"}, row(2, 2) | {"text": "û"}, columns=PLAIN)
    text = failure_text(lake.run(of))
    assert "1 values of text are not UTF-8, such as X'FB'." in text
    without = replace(of, tuning=Tuning(metrics={"text": "none"}), on_layout_change=OnLayoutChange.EVOLVE)
    assert lake.run(without).success, "as the failure says"
    give(lake, row(3, 3) | {"text": "\ufffd"}, columns=PLAIN)
    assert lake.run(table(Append())).success, "the character itself is text"


@pytest.mark.parametrize("rewrites", REWRITES)
def test_changes_of_every_partition_are_merged(lake: Lake, rewrites: Rewrites) -> None:
    of = table(Merge(["id"], delete_when="op = 'D'", order_by="at", rewrites=rewrites))
    days = {id: f"2024-01-{id % 20 + 1:02}" for id in range(260)}
    seed(lake, of, *(row(id, 0, day) for id, day in days.items()))
    give(lake, *(row(id, 1, day, op="D" if id < 20 else "U") for id, day in days.items() if id < 250))
    result = lake.run(of)
    assert result.success
    assert found(lake, of) == {id: (day, int(id < 250)) for id, day in days.items() if id >= 20}
    assert merged(result) == {
        "changes": 250,
        "left_out": 0,
        "matched": 250,
        "inserted": 0,
        "updated": 230,
        "deleted": 20,
    }


def test_a_column_that_neither_the_table_nor_the_merge_knows_is_refused(lake: Lake) -> None:
    of = table(Merge(["id"], order_by="at"))
    give(lake, row(1, 1))
    assert "unknown op" in failure_text(lake.run(of))


@pytest.mark.long("The columns of all modes are fitted by one function: test_schema_change_runs.py.")
def test_a_step_may_spell_columns_in_capitals(lake: Lake) -> None:
    of = table(step="tests.support.change_steps:rows_in_capitals")
    for changes in ([row(1, 1), row(2, 1)], [row(1, 2), row(2, 2, op="D")]):
        give(lake, *changes)
        result = lake.run(of)
        assert result.success, failure_text(result)
    assert found(lake, of) == {1: ("2024-01-01", 2)}


def test_rows_that_were_added_lately_are_left_out_of_an_append(lake: Lake) -> None:
    of = table(Append(dedup_on=["id"]), step="tests.support.change_steps:rows_while_others_write")
    seed(lake, of, row(1, 1), row(2, 1))
    others(lake, row(3, 5))
    give(lake, row(2, 2), row(3, 2), row(4, 2), row(4, 2), columns=PLAIN)
    result = lake.run(of)
    assert result.success
    assert {id: n for id, (_, n) in found(lake, of).items()} == {1: 1, 2: 1, 3: 5, 4: 2}
    assert lake.rows(of).num_rows == 4
    assert merged(result) == {"changes": 4, "left_out": 1, "matched": 2, "inserted": 1, "updated": 0, "deleted": 0}
    assert "staged again" in logged(lake, result)


@pytest.mark.long("test_key_bounds.py and test_row_changes.py hold what an append compares.")
def test_rows_that_were_added_long_ago_are_added_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    of = table(Append(dedup_on=["id"], within=timedelta(milliseconds=1)))
    for _ in range(2):
        give(lake, row(1, 1), columns=PLAIN)
        assert lake.run(of).success
    assert lake.rows(of).num_rows == 2


def test_an_append_adds_its_rows_once_though_the_run_is_resumed(lake: Lake) -> None:
    of = table(Append())
    give(lake, row(1, 1), columns=PLAIN)
    first = lake.run(of)
    assert first.success
    assert lake.run(of, tags=from_failure(first.run_id)).success
    assert lake.rows(of).num_rows == 1
    assert lake.run(of).success
    assert lake.rows(of).num_rows == 2


def test_an_append_is_repeated_as_a_whole_only_by_who_says_so(lake: Lake) -> None:
    of = table(Append())
    give(lake, row(1, 1), columns=PLAIN)
    first = lake.run(of)
    repeats = {"dagster/parent_run_id": first.run_id, "dagster/root_run_id": first.run_id}
    refused = lake.run(of, tags=repeats)
    assert f"with the tag lakehouse/append_again: {first.run_id}" in failure_text(refused)
    assert lake.rows(of).num_rows == 1
    assert lake.run(of, tags=repeats | {"lakehouse/append_again": first.run_id}).success
    assert lake.rows(of).num_rows == 2
