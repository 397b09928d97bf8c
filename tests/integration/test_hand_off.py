"""Hand-offs on moto: what readers get by the view while runs are killed, denied, late, at once, and columns change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse_assets.declare.columns import column, schema_of
from lakehouse_assets.errors import HandOffRefused, HandOffUnfinished
from lakehouse_assets.extensions.hand_off.hand_over import HandOffOutcome
from tests.support.aws_wire import Break, Wire, aws_wire
from tests.support.hand_offs import PLACE, REPLICA, SOURCE, STEPS, HandOffLake, Killed, before, hand_off_lake
from tests.support.killed_hand_off import killed
from tests.support.servers import PLAIN_BUCKET, Moto, moto
from tests.support.twins import twins

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def running_moto() -> Iterator[Moto]:
    with moto() as server:
        yield server


@pytest.fixture(scope="module")
def wire_to_moto(running_moto: Moto) -> Iterator[Wire]:
    with aws_wire(running_moto.uri) as state:
        yield state


@pytest.fixture
def wire(wire_to_moto: Wire) -> Wire:
    wire_to_moto.breaks = lambda call: None
    wire_to_moto.before = wire_to_moto.after = lambda number: None
    wire_to_moto.late.clear()
    return wire_to_moto


@pytest.fixture
def lake(wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HandOffLake]:
    (tmp_path / "warehouse").mkdir()
    with hand_off_lake(wire, tmp_path, monkeypatch) as found:
        yield found


@pytest.fixture
def handed(lake: HandOffLake) -> HandOffLake:
    """Readers have generation 1; the source has 2."""
    lake.write(1)
    lake.run("first")
    lake.write(2)
    return lake


def only(call: str, what: Break, times: int = 99) -> Callable[[str], Break | None]:
    """Breaks the first calls of a name."""
    left = [what] * times
    return lambda found: left.pop() if left and found.startswith(call) else None


def nothing_is_left_of(lake: HandOffLake, outcome_tables: int) -> None:
    """There are so many versions, in Glue, in storage and in the records."""
    folders = {key.split("/")[2] for key in lake.objects()}
    records = [key for key in lake.objects(prefix="staging/") if "/versions/" in key]
    assert len(lake.tables()) == outcome_tables
    assert len(folders) == outcome_tables
    assert len(records) == outcome_tables


# what readers get


def test_readers_get_the_newest_version_and_all_of_it(handed: HandOffLake) -> None:
    assert handed.reader.generation() == 1
    outcome = handed.run("second")
    assert outcome.landed
    assert handed.reader.generation() == 2
    rows = handed.reader.read()
    assert rows
    assert {row["day"] for row in rows} == {"2026-01-01", "2026-01-02", "2026-01-03"}
    assert {str(row["at"].tzinfo) for row in rows} == {"UTC"}


def test_without_partitions_a_version_is_one_folder(lake: HandOffLake) -> None:
    lake.write(2)
    lake.run("first", partitioned_by=())
    assert lake.reader.generation() == 2
    assert len(lake.objects()) == 1


def test_a_table_without_rows_is_handed_off_and_has_none(lake: HandOffLake) -> None:
    lake.write(0)
    lake.run("first")
    assert lake.reader.read() == []


@pytest.mark.parametrize("at", twins([3, 0, 1, 2, 4, 5], "The other steps of a reader."))
def test_a_reader_in_the_middle_of_a_switch_reads_the_version_that_it_began_with(handed: HandOffLake, at: int) -> None:
    steps = [0]

    def between() -> None:
        steps[0] += 1
        if steps[0] == at + 1:
            handed.run("second")
            handed.clock.time += timedelta(minutes=59)
            handed.write(3)
            handed.run("third", keep=timedelta(hours=1))

    assert handed.reader.generation(between) == 1
    assert steps[0] > at
    assert handed.reader.generation() == 3


def test_columns_change_between_two_hand_offs(handed: HandOffLake, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyiceberg.types import IntegerType, StringType

    with handed.source.update_schema(allow_incompatible_changes=True) as change:
        change.add_column("note", StringType())
        change.delete_column("at")
        change.rename_column("day", "date")
        change.add_column("shop", IntegerType())
    seen: list[dict[str, object]] = []
    before(monkeypatch, "switch", lambda: seen.extend(handed.reader.read() or []))
    columns = [column("n", "long"), column("date", "date"), column("note", "string"), column("shop", "int")]
    handed.run("second", source=replace(SOURCE, columns=columns), partitioned_by=["shop", "date"])
    assert {*seen[0]} == {"n", "day", "at"}
    rows = handed.reader.read()
    assert rows
    assert {*rows[0]} == {"n", "date", "note", "shop"}
    assert {row["shop"] for row in rows} == {"__HIVE_DEFAULT_PARTITION__"}
    assert handed.reader.generation() == 2


# killed


KILLED_AT = sorted(STEPS, key=lambda step: step not in ("write", "register", "switch", "clean_up"))


@pytest.mark.parametrize("step", twins(KILLED_AT, "The year's hand-off is killed at each of its calls.", keep=4))
def test_killed_before_a_step_readers_have_a_whole_version_and_the_run_goes_on(
    handed: HandOffLake, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die() -> None:
        raise Killed

    before(monkeypatch, step, die)
    with pytest.raises(Killed):
        handed.run("second")
    assert handed.reader.generation() == (2 if step == "clean_up" else 1)
    handed.write(3)
    outcome = handed.run("second")
    assert outcome.landed
    assert handed.reader.generation() == (3 if step == "decide" else 2)
    assert len(handed.tables()) == 2


# Glue refuses


@pytest.mark.parametrize("call", ["CreateTable", "BatchCreatePartition", "UpdateTable"])
def test_what_glue_refuses_to_register_is_removed(handed: HandOffLake, wire: Wire, call: str) -> None:
    wire.breaks = only(call, Break.DENIED)
    with pytest.raises(HandOffRefused, match=r"registration in Glue was refused: .*AccessDenied"):
        handed.run("second")
    assert handed.reader.generation() == 1
    nothing_is_left_of(handed, 1)
    wire.breaks = lambda found: None
    handed.run("second")
    assert handed.reader.generation() == 2


def test_what_can_not_be_removed_goes_with_a_later_hand_off(handed: HandOffLake, wire: Wire) -> None:
    def breaks(call: str) -> Break | None:
        return Break.DENIED if call in ("UpdateTable", "DeleteTable") else None

    wire.breaks = breaks
    with pytest.raises(HandOffRefused, match="will be removed by the next hand-off"):
        handed.run("second")
    handed.finished("second", succeeded=False)
    wire.breaks = lambda call: None
    assert handed.reader.generation() == 1
    for days, token in ((20, "third"), (91, "fourth")):
        handed.clock.time += timedelta(days=days)
        handed.run(token)
    assert handed.reader.generation() == 2
    nothing_is_left_of(handed, 2)  # of the third one and the current one


@pytest.mark.parametrize("is_current", [True, False])
def test_what_readers_may_have_is_not_removed_by_a_refusal_of_a_retry(
    handed: HandOffLake, wire: Wire, monkeypatch: pytest.MonkeyPatch, is_current: bool
) -> None:
    def die() -> None:
        raise Killed

    before(monkeypatch, "clean_up", die)
    with pytest.raises(Killed):
        handed.run("second")

    def retry() -> None:
        if not is_current:
            handed.write(3)
            handed.run("third")
        wire.breaks = only("CreateTable", Break.DENIED)
        with pytest.raises(HandOffRefused, match="AccessDenied"):
            handed.run("second")
        wire.breaks = lambda call: None

    steps = iter([retry])
    assert handed.reader.generation(lambda: next(steps, lambda: None)()) == 2
    assert handed.reader.generation() == (2 if is_current else 3)


# Glue answers late, or never


@pytest.mark.parametrize("what", [Break.LOST, Break.LATE])
@pytest.mark.parametrize(
    "call",
    twins(
        ["UpdateTable", "CreateTable", "BatchCreatePartition", "GetTable", "GetPartitions"], "The other calls.", keep=2
    ),
)
def test_an_answer_that_is_lost_is_found_out(handed: HandOffLake, wire: Wire, call: str, what: Break) -> None:
    wire.breaks = only(call, what, times=1)
    handed.run("second")
    assert handed.reader.generation() == 2
    wire.deliver()
    assert handed.reader.generation() == 2
    nothing_is_left_of(handed, 2)


@pytest.mark.parametrize("is_first", [False, True])
def test_a_switch_that_may_land_yet_keeps_what_was_written(
    lake: HandOffLake, wire: Wire, is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_first:
        lake.write(1)
        lake.run("first")
    lake.write(2)

    def break_all() -> None:
        wire.breaks = only("CreateTable" if is_first else "UpdateTable", Break.LATE)

    before(monkeypatch, "switch", break_all)
    with pytest.raises(HandOffUnfinished, match="it is unknown whether it points to"):
        lake.run("second")
    assert lake.reader.generation() == (0 if is_first else 1)
    wire.breaks = lambda call: None
    wire.deliver()
    assert lake.reader.generation() == 2
    written = lake.objects()
    assert lake.run("second").landed
    assert lake.objects() == written


def test_a_late_switch_does_not_undo_a_newer_one(
    handed: HandOffLake, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.breaks = only("UpdateTable", Break.LATE)
    with pytest.raises(HandOffUnfinished):
        handed.run("second")
    wire.breaks = lambda call: None
    handed.write(3)
    handed.run("third")
    wire.deliver()
    assert handed.reader.generation() == 3
    assert not handed.run("second").landed
    assert handed.reader.generation() == 3


def test_glue_that_is_down_keeps_what_was_written_and_a_retry_goes_on(handed: HandOffLake, wire: Wire) -> None:
    wire.breaks = only("BatchCreatePartition", Break.DOWN)
    with pytest.raises(HandOffUnfinished, match="continues from here"):
        handed.run("second")
    assert handed.reader.generation() == 1
    wire.breaks = lambda call: None
    wire.calls.clear()
    handed.run("second")
    assert handed.reader.generation() == 2
    assert not [call for call in wire.calls if call.startswith(("PUT /plain/exports", "POST /plain/exports"))]


# replicas


def test_a_replica_that_lags_for_minutes_is_waited_for(handed: HandOffLake) -> None:
    handed.clock.due.append((timedelta(minutes=7), handed.replicate))
    outcome = handed.run("second", replicas=[REPLICA])
    assert handed.reader.generation() == 2
    assert timedelta(minutes=7) <= outcome.arrived[0].waited < timedelta(minutes=9)
    assert handed.clock.waits[:4] == [1, 2, 4, 8]
    assert max(handed.clock.waits) == 60


def test_a_replica_that_is_not_there_in_time_stops_the_switch_and_a_retry_goes_on(
    handed: HandOffLake, wire: Wire
) -> None:
    with pytest.raises(HandOffUnfinished, match=r"3 of 3 files have not arrived, such as day=2026-01-01/part-0\.parq"):
        handed.run("second", replicas=[REPLICA])
    assert handed.reader.generation() == 1
    assert len(handed.tables()) == 1
    handed.replicate()
    wire.calls.clear()
    handed.run("second")
    assert handed.reader.generation() == 2
    assert not [call for call in wire.calls if call.startswith(("PUT /plain/exports", "POST /plain/exports"))]


def test_a_replica_with_another_file_than_was_written_does_not_count(handed: HandOffLake, wire: Wire) -> None:
    before = handed.objects()  # of the first version, whose name may stand behind the second's

    def replicate_badly() -> None:
        handed.replicate()
        (key, *_) = [key for key in handed.objects("replica-eu") if "day=2026-01-02" in key and key not in before]
        body = wire.client("s3").get_object(Bucket="replica-eu", Key=key)["Body"].read()
        wire.client("s3").put_object(Bucket="replica-eu", Key=key, Body=body[:-20] + bytes(12) + body[-8:])

    handed.clock.due.append((timedelta(minutes=1), replicate_badly))
    with pytest.raises(HandOffUnfinished, match=r"no Parquet|1 of 3 files have not arrived, such as day=2026-01-02"):
        handed.run("second", replicas=[REPLICA])
    assert handed.reader.generation() == 1


def test_a_replica_that_may_not_be_read_is_named(handed: HandOffLake, wire: Wire) -> None:
    wire.breaks = only("GET /replica-eu", Break.DENIED)
    with pytest.raises(HandOffRefused, match=r"replica s3://replica-eu/exports/source/\S+ can't be read"):
        handed.run("second", replicas=[REPLICA])
    assert handed.reader.generation() == 1


# two at once


@pytest.mark.parametrize("step", twins(reversed(STEPS), "The steps before the switch.", keep=2))
def test_an_older_one_never_replaces_a_newer_one(
    handed: HandOffLake, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes: list[HandOffOutcome] = []

    def other() -> None:
        handed.write(3)
        outcomes.append(handed.run("newer"))
        assert handed.reader.generation() == 3

    before(monkeypatch, step, other)
    older = handed.run("older")
    assert outcomes[0].landed
    assert handed.reader.generation() == 3
    assert older.landed == (step in ("decide", "clean_up"))
    nothing_is_left_of(handed, 3)


@pytest.mark.parametrize(
    "step",
    twins([step for step in reversed(STEPS) if step not in ("decide", "clean_up")], "The steps before the switch."),
)
def test_a_newer_one_replaces_an_older_one_that_was_quicker(
    handed: HandOffLake, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = handed.hand_over("older")
    older.decide()
    handed.write(3)
    before(monkeypatch, step, lambda: older.run())
    assert handed.run("newer").landed
    assert handed.reader.generation() == 3


def test_both_switch_between_the_look_and_the_switch_of_the_other(handed: HandOffLake, wire: Wire) -> None:
    def breaks(call: str) -> Break | None:
        if call == "UpdateTable" and not handed.runs.get("newer"):
            wire.breaks = lambda found: None
            handed.write(3)
            handed.run("newer")
        return None

    wire.breaks = breaks
    assert not handed.run("older").landed
    assert handed.reader.generation() == 3


def test_a_source_that_was_rolled_back_is_handed_off(handed: HandOffLake) -> None:
    good = handed.source.current_snapshot()
    assert good
    handed.run("second")
    handed.write(3)
    handed.run("third")
    handed.source.manage_snapshots().rollback_to_snapshot(good.snapshot_id).commit()
    assert handed.run("fourth").landed
    assert handed.reader.generation() == 2


# what goes, and what stays


def test_versions_go_once_their_time_is_over_and_nothing_else(handed: HandOffLake, wire: Wire) -> None:
    foreign = "exports/source/20200101t000000z_00000000/other.parquet"
    wire.client("s3").put_object(Bucket=PLAIN_BUCKET, Key=foreign, Body=b"not ours")
    handed.run("second")
    handed.clock.time += timedelta(days=89)
    assert not handed.run("third").removed
    handed.clock.time += timedelta(days=1)
    (removed,) = handed.run("fourth").removed
    assert removed.token == "first"
    assert not [key for key in handed.objects() if removed.name in key]
    assert foreign in handed.objects()
    assert len(handed.tables()) == 3
    handed.clock.time += timedelta(days=1000)
    assert [one.token for one in handed.run("fifth").removed] == ["second", "third"]
    assert handed.reader.generation() == 2


@pytest.mark.parametrize("dies", [False, True])
def test_the_time_of_what_readers_get_again_begins_anew(
    handed: HandOffLake, dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed.run("second")  # the first one is left
    plan = handed.hand_over("first").decide()
    handed.source.manage_snapshots().rollback_to_snapshot(plan.snapshot_id).commit()
    handed.clock.time += timedelta(days=90)

    def die() -> None:
        raise Killed

    if dies:
        before(monkeypatch, "clean_up", die)
    with pytest.raises(Killed) if dies else nullcontext():
        handed.run("first")
    assert handed.reader.generation() == 1
    handed.write(3)
    assert "first" not in [one.token for one in handed.run("third").removed]
    handed.clock.time += timedelta(days=90)
    assert "first" in [one.token for one in handed.run("fourth").removed]


def test_what_a_run_may_still_finish_stays(handed: HandOffLake, monkeypatch: pytest.MonkeyPatch) -> None:
    def die() -> None:
        raise Killed

    before(monkeypatch, "register", die)
    with pytest.raises(Killed):
        handed.run("second")
    for token in ("third", "fourth"):  # as far as Dagster knows, the second one goes on
        handed.clock.time += timedelta(hours=2)
        handed.run(token, keep=timedelta(hours=1))
    assert [one.token for one in handed.hand_over("fifth").services.records.versions()] == ["second", "third", "fourth"]
    assert not handed.run("second").landed or handed.reader.generation() == 2


def test_a_clean_up_that_fails_says_so_and_the_next_one_does_it(handed: HandOffLake, wire: Wire) -> None:
    handed.run("second")
    handed.clock.time += timedelta(days=90)
    wire.breaks = only("DeleteTable", Break.DENIED)
    outcome = handed.run("third")
    assert "AccessDenied" in outcome.not_removed
    wire.breaks = lambda call: None
    assert [one.token for one in handed.run("fourth").removed] == ["first"]


def test_what_was_removed_before_a_clean_up_fails_is_told(handed: HandOffLake, wire: Wire) -> None:
    for token in ("second", "third"):
        handed.run(token)
    handed.clock.time += timedelta(days=90)
    denied = only("DeleteTable", Break.DENIED)
    calls = iter([None])
    wire.breaks = lambda call: next(calls, denied(call)) if denied(call) else None
    outcome = handed.run("fourth")
    (removed,) = outcome.removed
    assert removed.token in ("first", "second")
    assert "AccessDenied" in outcome.not_removed


# what is refused


def test_a_name_that_is_somebody_elses_is_refused_before_anything_is_written(lake: HandOffLake, wire: Wire) -> None:
    lake.write(1)
    wire.client("glue").create_table(
        DatabaseName="partners", TableInput={"Name": "source", "TableType": "EXTERNAL_TABLE"}
    )
    with pytest.raises(HandOffRefused, match=r"partners\.source in Glue is not a view of a hand-off"):
        lake.run("first")
    assert not lake.objects()


def test_a_view_of_another_hand_off_is_refused(handed: HandOffLake) -> None:
    with pytest.raises(HandOffRefused, match="belongs to the hand-off demo/hand_off/partners/source"):
        handed.run("second", name="other")


def test_a_view_that_lost_its_version_is_refused_and_what_readers_get_stays(handed: HandOffLake, wire: Wire) -> None:
    glue = wire.client("glue")
    view = glue.get_table(DatabaseName="partners", Name="source")["Table"]
    view = {name: view[name] for name in ("Name", "TableType", "Parameters", "ViewOriginalText", "ViewExpandedText")}
    del view["Parameters"]["lakehouse.version"]
    glue.update_table(DatabaseName="partners", TableInput=view)
    handed.clock.time += timedelta(days=1000)
    with pytest.raises(HandOffRefused, match=r"partners\.source .* parameters lakehouse\.version are missing"):
        handed.run("second")
    assert handed.reader.generation() == 1
    nothing_is_left_of(handed, 1)
    glue.delete_table(DatabaseName="partners", Name="source")
    handed.run("third")
    assert handed.reader.generation() == 2


def test_a_missing_database_is_named(lake: HandOffLake) -> None:
    lake.write(1)
    with pytest.raises(HandOffRefused, match="Glue has no database nowhere"):
        lake.run("first", glue="nowhere.source")


def test_a_location_among_tables_or_records_is_refused(lake: HandOffLake) -> None:
    lake.write(1)
    with pytest.raises(HandOffRefused, match="overlaps s3://plain/staging"):
        lake.run("first", location="s3://plain/staging/exports")


def test_a_table_without_a_snapshot_is_refused(lake: HandOffLake) -> None:
    lake.catalog.create_namespace_if_not_exists("demo")
    lake.catalog.create_table(SOURCE.identifier, schema_of(SOURCE.columns))
    with pytest.raises(HandOffRefused, match="has no snapshot to hand off"):
        lake.run("first")


def test_a_column_that_hive_has_no_type_for_is_refused_by_its_name(handed: HandOffLake) -> None:
    from pyiceberg.types import NestedField as Field
    from pyiceberg.types import StructType, UUIDType

    with handed.source.update_schema() as change:
        change.add_column("who", StructType(Field(1, "id", UUIDType())))
    handed.write(2)
    with pytest.raises(HandOffRefused, match=r"column who\.id is a uuid, for which Hive has no type"):
        handed.run("second")
    nothing_is_left_of(handed, 1)


def test_rows_that_are_missing_are_found_and_what_was_written_is_removed(
    handed: HandOffLake, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {*handed.objects()}

    def lose_one() -> None:
        key = max({*handed.objects()} - there)
        wire.client("s3").delete_object(Bucket=PLAIN_BUCKET, Key=key)

    before(monkeypatch, "check_written", lose_one)
    with pytest.raises(HandOffRefused, match="has 4 rows in 2 files, but the snapshot has 6"):
        handed.run("second")
    nothing_is_left_of(handed, 1)
    assert handed.reader.generation() == 1


def test_a_text_that_no_path_can_hold_is_refused_and_what_was_written_is_removed(lake: HandOffLake) -> None:
    source = replace(SOURCE, columns=[column("n", "long"), column("shop", "string")])
    lake.catalog.create_namespace_if_not_exists("demo")
    table = lake.catalog.create_table(SOURCE.identifier, schema_of(source.columns))
    table.append(pa.table({"n": [1, 1, 1], "shop": ["a", "Köln/Rhein", ""]}))
    with pytest.raises(HandOffRefused, match="column shop contains '', which Hive reads as null"):
        lake.run("first", source=source, partitioned_by=["shop"])
    nothing_is_left_of(lake, 0)
    table.overwrite(pa.table({"n": [1, 1, 1], "shop": ["a", "Köln/Rhein 50%", None]}))
    lake.run("second", source=source, partitioned_by=["shop"])
    assert {row["shop"] for row in lake.reader.read() or ()} == {"a", "Köln/Rhein 50%", "__HIVE_DEFAULT_PARTITION__"}


def test_a_snapshot_that_expired_before_it_was_written_is_named(handed: HandOffLake) -> None:
    hand_over = handed.hand_over("second")
    plan = hand_over.decide()
    handed.write(3)
    handed.source.maintenance.expire_snapshots().by_id(plan.snapshot_id).commit()
    with pytest.raises(HandOffRefused, match=f"has expired the snapshot {plan.snapshot_id}"):
        hand_over.run()
    assert PLACE in plan.location
    handed.run("third")
    assert handed.reader.generation() == 3


# killed for good, at every call


@pytest.mark.long("Kills a process at each call to AWS, before and behind it: takes minutes.")
@pytest.mark.timeout(3000)
def test_killed_at_any_call_no_reader_ever_reads_wrong(lake: HandOffLake, wire: Wire) -> None:
    lake.write(1)
    lake.run("run1")
    generation, kills, reads, keep = 1, 0, 0, timedelta(hours=1)
    for landed in (False, True):
        for at in count(1):
            generation += 1
            lake.write(generation)
            lake.clock.time += timedelta(hours=2)
            died = killed(lake, wire, f"run{generation}", at, landed=landed, keep=keep)
            assert lake.reader.generation() in (generation - 1, generation)
            assert lake.run(f"run{generation}", keep=keep).landed
            assert lake.reader.generation() == generation
            reads += 2
            if not died:
                break
            kills += 1
    lake.clock.time += timedelta(hours=2)
    lake.run("last", keep=keep)
    nothing_is_left_of(lake, 2)
    print(f"{kills} deaths, {reads} reads, none of them wrong")
    assert kills > 50
