"""Releases: whatever happens while one is published, readers get one whole release, the old one or the new one.
What a pointer and a declaration are by themselves is in unit/releases."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from lakehouse_assets.build_location import code_location
from lakehouse_assets.commit.expire import ExpiryPolicy, plan_expiry
from lakehouse_assets.environment.catalog import catalog_properties
from lakehouse_assets.environment.settings import Settings, read_settings
from lakehouse_assets.errors import ForeignVersion, NoSuchRelease
from lakehouse_assets.extensions.releases import publish_release
from lakehouse_assets.extensions.releases.consistency import Log
from lakehouse_assets.extensions.releases.pointer import load_pointer, released_snapshots
from lakehouse_assets.extensions.releases.publish_release import ReleaseOutcome
from lakehouse_assets.extensions.releases.release_asset import Release
from lakehouse_assets.inputs.trace import Trace, tree_lines
from lakehouse_assets.run.domain import Domain
from lakehouse_assets.run.in_flight import MAINTENANCE
from tests.conftest import ROOT, Lake, failure_text
from tests.support.instances import light_instance
from tests.support.live_lake import live_catalogs
from tests.support.outsiders import commit_deletes, live, position_deletes
from tests.support.releases import (
    BETWEEN,
    RAW,
    STEPS,
    SUMS,
    TABLES,
    ReleasedLake,
    before,
    generations,
    rows,
    smaller,
    tag_names,
    told,
    written,
)
from tests.support.twins import twins
from tests.support.without_pandas import COMMAND


@pytest.fixture(scope="module")
def first_release(tmp_path_factory: pytest.TempPathFactory, empty_instance: Path) -> tuple[Path, Path]:
    """A folder that has release 1 of generation 1, by a home and a Dagster instance, and a copy of it."""
    folder = tmp_path_factory.mktemp("released")
    now, saved = folder / "now", folder / "saved"
    shutil.copytree(empty_instance, now / "dagster")
    with pytest.MonkeyPatch.context() as patch, light_instance(now / "dagster") as instance:
        patch.setenv("LAKEHOUSE_HOME", str(now / "home"))
        assert ReleasedLake(read_settings(), instance).published(1) == 1
    shutil.copytree(now, saved)
    return now, saved


@pytest.fixture
def demo(
    settings: Settings, first_release: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[ReleasedLake]:
    """The domain with release 1 of generation 1."""
    now, saved = first_release
    shutil.rmtree(now)
    shutil.copytree(saved, now)  # to the same place: its paths are absolute
    monkeypatch.setenv("LAKEHOUSE_HOME", str(now / "home"))
    with light_instance(now / "dagster") as instance:
        yield ReleasedLake(read_settings(), instance)


def test_readers_get_what_was_released_whatever_is_written_meanwhile(demo: ReleasedLake) -> None:
    demo.write(2)
    assert generations(demo.read()) == {1}
    assert told(demo.publish())["release"] == 2
    assert generations(demo.read()) == {2}
    assert generations(demo.read().previous) == {1}
    assert generations(demo.read(number=1)) == {1}


def test_a_release_is_found_by_its_time(demo: ReleasedLake) -> None:
    between = datetime.now(UTC)
    demo.published(2)
    assert demo.read(at=between).number == 1
    assert demo.read(at=datetime.now(UTC)).number == 2
    with pytest.raises(NoSuchRelease, match=r"demo has no release at 2001.*kept releases are 1 of"):
        demo.read(at=datetime(2001, 1, 1, tzinfo=UTC))
    with pytest.raises(TypeError, match=r"at is datetime\.date\(2001, 1, 1\), expected a datetime"):
        demo.read(at=date(2001, 1, 1))


def test_the_ui_shows_the_manifest_and_what_changed(demo: ReleasedLake) -> None:
    demo.write(4)
    manifest = told(demo.publish())["manifest"]
    assert [line.removesuffix(" |").split(" | ")[0::3] for line in manifest.splitlines()[2:]] == [
        ["| demo.raw", "+3"],
        ["| demo.sums", "+3"],
    ]


def test_the_manifest_tells_the_rows_that_readers_get(demo: ReleasedLake) -> None:
    demo.write(5)
    table = demo.table(RAW)
    commit_deletes(table, position_deletes(table, {live(table)[0].data_file.file_path: [0, 1, 2]}))
    manifest = told(demo.publish(release_anyway="true"))["manifest"]
    assert manifest.splitlines()[2].endswith("| 2 | +1 |")
    assert demo.read().members["demo.raw"].rows == 2


def test_nothing_changed_is_no_new_release(demo: ReleasedLake) -> None:
    again = told(demo.publish())
    assert again["release"] == 1
    assert not again["is_new"]
    assert demo.numbers() == [1]


# what does not fit together


def test_a_member_made_anew_without_those_made_from_it_is_refused(demo: ReleasedLake) -> None:
    demo.write(2, RAW)
    text = failure_text(demo.publish())
    assert "demo.between was made from the version of demo.raw before run" in text
    assert "Materialize it again" in text
    assert generations(demo.read()) == {1}


def test_so_it_is_through_a_table_that_is_no_member(demo: ReleasedLake) -> None:
    demo.write(2, RAW, BETWEEN)
    assert "demo.sums was made from the version of demo.between before run" in failure_text(demo.publish())
    demo.write(2, SUMS)
    assert demo.publish().success


def test_anyway_it_is_released_and_told(demo: ReleasedLake) -> None:
    demo.write(2, RAW)
    metadata = told(demo.publish(release_anyway="true"))
    assert metadata["release"] == 2
    assert "demo.between was made from the version of demo.raw before run" in metadata["does_not_fit_together"]
    assert generations(demo.read()) == {1, 2}


def test_rows_of_a_run_that_has_not_reported_are_refused(demo: ReleasedLake, quick_looks: None) -> None:
    dead = demo.run(SUMS.key, generation="2", dies=SUMS.identifier)
    text = failure_text(demo.publish())
    assert f"demo.sums has rows of run {dead.run_id}" in text
    demo.write(3)
    assert demo.publish(release_anyway="true").success


def test_a_run_that_reports_while_the_release_waits_is_waited_for(
    demo: ReleasedLake, quick_looks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo.run(SUMS.key, generation="2", dies=SUMS.identifier)
    before(monkeypatch, "pin_members", lambda: demo.write(2), nth=2)
    assert told(demo.publish())["release"] == 2
    assert generations(demo.read()) == {2}


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reports while a test waits."""
    monkeypatch.setattr("lakehouse_assets.extensions.releases.publish_release.LONGEST_WAIT_S", 0)


def test_a_member_rolled_back_is_refused_until_it_is_made_again(demo: ReleasedLake, quick_looks: None) -> None:
    first = demo.table(SUMS).current_snapshot().snapshot_id
    demo.published(2)
    demo.table(SUMS).manage_snapshots().set_current_snapshot(first).commit()
    assert "demo.sums" in failure_text(demo.publish())
    assert generations(demo.read()) == {2}
    assert demo.published(3) == 3
    assert generations(demo.read()) == {3}


def test_a_member_without_a_snapshot_is_refused_by_name(lake: Lake) -> None:
    demo = ReleasedLake(lake.settings, lake.instance)
    demo.write(1, RAW)
    assert "table demo.sums: a release of demo needs a snapshot" in failure_text(demo.publish(release_anyway="true"))
    with pytest.raises(NoSuchRelease, match="demo has no releases"):
        demo.read()


def test_what_is_reported_between_two_looks_at_the_log_is_not_taken_for_what_was_pinned(
    demo: ReleasedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo.write(2, RAW, BETWEEN)
    outdated = Log.stale_members

    def late(log: Log, *arguments: Any) -> Iterator[str]:
        demo.write(2, SUMS)
        return outdated(log, *arguments)

    monkeypatch.setattr(Log, "stale_members", late)
    assert "demo.sums was made from the version of demo.between before run" in failure_text(demo.publish())
    monkeypatch.undo()
    assert told(demo.publish())["release"] == 2
    assert generations(demo.read()) == {2}


# back


def test_rolling_back_is_a_new_release(demo: ReleasedLake) -> None:
    demo.published(2)
    assert told(demo.publish(release_again="1"))["release"] == 3
    assert generations(demo.read()) == {1}
    assert generations(demo.read().previous) == {2}
    assert "release 9 is not kept; the kept releases are 1, 2, 3" in failure_text(demo.publish(release_again="9"))
    assert told(demo.publish(release_again="2"))["released_again"] == 2
    assert "release 0 is not kept; the kept releases are 1, 2, 3" in failure_text(demo.publish(release_again="0"))
    assert "expected the number" in failure_text(demo.publish(release_again="one"))
    assert "lakehouse/release_anyway is 'yes'" in failure_text(demo.publish(release_anyway="yes"))


def test_the_trace_of_a_release_names_what_it_holds(demo: ReleasedLake) -> None:
    demo.published(2)
    demo.publish(release_again="1")
    graph = dg.Definitions([*map(written, TABLES), demo.release.asset], resources={"lakehouse": None})
    found = Trace(demo.instance, graph.resolve_asset_graph()).of(demo.release.asset.key)
    text = "\n".join(tree_lines(found))
    assert f"demo.raw: snapshot {demo.read().members['demo.raw'].snapshot_id}" in text
    assert str(demo.table(RAW).current_snapshot().snapshot_id) not in text


# others, between all steps


def expire_all(demo: ReleasedLake) -> None:
    """Another client expires all that no branch and no tag keeps."""
    for table in (RAW, SUMS):
        found = demo.table(table)
        kept = {ref.snapshot_id for ref in found.metadata.refs.values()}
        if gone := [one.snapshot_id for one in found.snapshots() if one.snapshot_id not in kept]:
            found.maintenance.expire_snapshots().by_ids(gone).commit()


def write_and_expire(demo: ReleasedLake) -> None:
    demo.write(3)
    expire_all(demo)


def release_newer(demo: ReleasedLake) -> None:
    assert ReleasedLake(demo.settings, demo.instance).published(3)


def create_again(demo: ReleasedLake) -> None:
    demo.catalog.drop_table("demo.raw")
    demo.write(3)


def lose_tags(demo: ReleasedLake) -> None:
    for table in (RAW, SUMS):
        change = demo.table(table).manage_snapshots()
        if tags := demo.tags(table):
            for tag in tags:
                change.remove_tag(tag)
            change.commit()


def lose_tags_and_expire(demo: ReleasedLake) -> None:
    lose_tags(demo)
    write_and_expire(demo)


ACTS = (release_newer, lose_tags_and_expire, write_and_expire, create_again, lose_tags)
LONG = pytest.mark.long("The acts of `make test` do these as well, but for creating a table again.")


def is_kept(step: str, act: Callable[[ReleasedLake], None]) -> bool:
    return act is release_newer or (act is lose_tags_and_expire and step in ("tag_members", "verify_members", "move"))


@pytest.mark.parametrize(
    ("step", "act"),
    [pytest.param(step, act, marks=() if is_kept(step, act) else [LONG]) for act in ACTS for step in STEPS],
)
def test_readers_get_one_whole_release_whatever_others_do_before_a_step(
    demo: ReleasedLake, step: str, act: Callable[[ReleasedLake], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    demo.write(2)
    seen: list[set[int]] = []

    def acting() -> None:
        act(demo)
        if act is not create_again and act is not lose_tags_and_expire:  # nothing can save what these two destroy
            seen.append(generations(demo.read()))

    acted = before(monkeypatch, step, acting)
    result = demo.publish()
    assert acted
    assert result.success, failure_text(result)
    if step not in ("move", "tidy") or act in (write_and_expire, release_newer, lose_tags):
        seen.append(generations(demo.read()))
    assert all(len(found) == 1 for found in seen), seen
    newest = demo.read()
    numbers = [one.number for one in newest.pointer.releases]
    assert numbers == sorted({*numbers}), "no release is lost, none is made twice"
    if act is release_newer and step != "tidy":
        assert generations(newest) == {3}, "an older publisher has replaced a newer release"


def test_of_two_releases_at_once_each_is_whole_and_none_is_lost(demo: ReleasedLake) -> None:
    seen: list[set[int]] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.append(generations(demo.read()))

    def publish(run_id: str) -> ReleaseOutcome:
        order = publish_release.Order("demo", demo.release.tables, run_id, 10, timedelta(), anyway=True)
        graph = dg.Definitions([demo.release.asset], resources={"lakehouse": None}).resolve_asset_graph()
        return publish_release.publish_release(demo.catalog, order, Log(demo.instance, graph))

    with ThreadPoolExecutor() as pool:
        reader = pool.submit(read)
        try:
            for generation in (2, 3, 4):
                for table in (RAW, SUMS):
                    demo.table(table).overwrite(rows(*[generation] * generation))
                outcomes = [*pool.map(publish, (f"{generation}-a", f"{generation}-b"))]
                assert {one.release.number for one in outcomes} == {generation}
                assert [one.is_new for one in outcomes].count(True) == 1, "the other found that nothing had changed"
        finally:
            done.set()
        reader.result()
    assert all(len(found) == 1 for found in seen), seen
    assert demo.numbers() == [1, 2, 3, 4]


# how long


def test_the_last_ones_are_kept_and_their_tags_and_no_others(demo: ReleasedLake) -> None:
    demo.release = smaller(keep=2, keep_for=timedelta())
    runs = [demo.read().pointer.newest.run_id]
    for generation in (2, 3, 4):
        demo.published(generation)
        runs.append(demo.read().pointer.newest.run_id)
    assert demo.numbers() == [3, 4]
    assert {*demo.tags(RAW)} == tag_names(runs[-2:])
    demo.release = smaller(keep=2, keep_for=timedelta(days=1))
    demo.published(5)
    assert demo.numbers() == [3, 4, 5]
    with pytest.raises(NoSuchRelease, match="release 3 of demo is the oldest one kept"):
        _ = demo.read(number=3).previous


def test_a_table_that_is_a_member_no_more_keeps_the_tags_of_kept_releases_alone(demo: ReleasedLake) -> None:
    before = demo.read().pointer.newest.run_id
    demo.release = Release("demo", [SUMS], keep=2, keep_for=timedelta())
    demo.published(2)
    assert {*demo.tags(RAW)} == tag_names([before])
    demo.published(3)
    assert demo.tags(RAW) == {}


def test_a_released_snapshot_does_not_expire_although_its_tag_is_gone(demo: ReleasedLake) -> None:
    released = demo.read().members["demo.raw"].snapshot_id
    demo.write(2)
    demo.write(3)
    lose_tags(demo)
    metadata = demo.table(RAW).metadata
    policy, later = ExpiryPolicy(minimum=1), metadata.last_updated_ms + 10 * 24 * 3_600_000
    kept = released_snapshots(demo.catalog, "demo.raw", ["demo", "elsewhere"])
    assert kept == {released}
    assert released not in plan_expiry("demo.raw", metadata, policy, later, kept).expiry.snapshot_ids
    assert released in plan_expiry("demo.raw", metadata, policy, later).expiry.snapshot_ids
    demo.publish()
    assert released in demo.tags(RAW).values(), "the next release has set the tag again"


def test_so_it_is_with_a_release_of_a_domain_that_has_no_tables(demo: ReleasedLake) -> None:
    demo.write(2)
    demo.release = Release("partners", [RAW])
    demo.publish()
    (pointer,) = load_pointer(demo.catalog, "partners").releases
    released = pointer.members[0].snapshot_id
    age = {"history.expire.max-snapshot-age-ms": "1", "history.expire.min-snapshots-to-keep": "1"}
    demo.table(RAW).transaction().set_properties(age).commit_transaction()
    demo.write(3)
    lose_tags(demo)
    domains = Domain("demo", tables=TABLES), Domain("partners", tables=(), assets=[demo.release.asset])
    job = code_location(*domains).resolve_job_def(MAINTENANCE)
    config = {"tables": ["demo.raw"], "levels": ["expire"], "dry_run": False, "patient": False, "force": True}
    assert job.execute_in_process(run_config=config, instance=demo.instance).success
    assert released in {one.snapshot_id for one in demo.table(RAW).snapshots()}


def test_a_pointer_whose_columns_somebody_renamed_is_told(demo: ReleasedLake) -> None:
    demo.write(2)
    with demo.catalog.load_table("demo.releases").update_schema() as change:
        change.rename_column("released_at", "at")
    says = r"demo\.releases: the pointer of releases has no column released_at, it has release, at, run_id"
    with pytest.raises(ForeignVersion, match=says):
        demo.read()
    assert re.search(says, failure_text(demo.publish()))


def test_the_pointer_has_one_data_file_and_a_short_history(demo: ReleasedLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish_release, "HISTORY", 3)
    for generation in range(2, 11):
        demo.catalog.load_table("demo.raw").append(rows(generation))
        demo.publish(release_anyway="true")
    pointer = load_pointer(demo.catalog, "demo")
    assert pointer is not None
    assert pointer.newest.number == 10
    assert len([*pointer.table.scan().plan_files()]) == 1
    assert len(pointer.table.snapshots()) <= 6


# engines


def test_polars_and_duckdb_read_the_released_snapshot(demo: ReleasedLake) -> None:
    demo.write(3)
    released = demo.read()
    assert released.polars("demo.raw").collect()["n"].to_list() == [1]
    connection = released.scan("demo.raw").to_duckdb("raw")
    assert connection.sql("SELECT n FROM raw").fetchall() == [(1,)]
    with pytest.raises(NoSuchRelease, match=r"has no table demo\.between; it has demo\.raw, demo\.sums"):
        released.scan("demo.between")


@pytest.mark.spark
def test_spark_reads_the_released_snapshot(demo: ReleasedLake, jvm: SparkSession) -> None:
    from lakehouse_assets.worker.session import configure

    demo.write(3)
    spark = configure(jvm.newSession(), live_catalogs(catalog_properties(demo.settings)))
    assert [row.n for row in demo.read().spark(spark, "demo.raw").collect()] == [1]


# killed


@pytest.mark.parametrize("step", twins(reversed(STEPS), "Deaths on either side of the move stay.", keep=2))
def test_killed_before_a_step_readers_have_a_whole_release_and_the_next_run_goes_on(
    demo: ReleasedLake, step: str
) -> None:
    demo.write(2)
    command = [*COMMAND, "tests.support.killed_release", step, demo.instance.root_directory]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert generations(demo.read()) == ({2} if step == "tidy" else {1})
    reported = told(demo.publish())
    assert reported["release"] == 2
    assert reported["is_new"] == (step != "tidy")
    assert generations(demo.read()) == {2}
