"""The rules by which a listed file stays or may go, one by one and in their order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lakehouse_assets.maintenance.collect.judge import Judgement, Keep, Knowledge, WhyUnneeded
from lakehouse_assets.maintenance.collect.listing import Listed
from lakehouse_assets.maintenance.collect.needed import Periods, PlaceSet, RunState, StagedFiles
from lakehouse_assets.storage.place import Place, crc_owner, place_of

NOW, DAY = 10**12, 24 * 3600 * 1000
T = "s3://lake/t"
STATES = dict.fromkeys(("alive", "resumable", "finished", "dead"), RunState.DEAD) | {s.value: s for s in RunState}


def places(*locations: str) -> PlaceSet:
    found = PlaceSet()
    for location in locations:
        found.add(location)
    return found


def judge(
    location: str | Place,
    *,
    live: Sequence[str] = (),
    held: Sequence[str] = (),
    free: Sequence[tuple[str, str]] = (),
    foreign: Sequence[str] = (),
    days: float = 60,
    marked: str | None = None,
) -> Judgement:
    staged = StagedFiles(places(*held))
    for token, named in free:
        staged.set_free(token, named)
    known = Knowledge(places(*live), staged, places(*foreign), STATES, NOW, Periods())
    place = location if isinstance(location, Place) else place_of(location)
    return known.judge(Listed(place, 1, NOW - round(days * DAY), "e"), marked)


def test_what_nobody_names_goes_when_no_worker_may_still_name_it() -> None:
    assert judge(f"{T}/f", days=21.1) == Judgement(None, WhyUnneeded.UNNAMED)
    assert judge(f"{T}/f", days=20.9).keep is Keep.YOUNG
    assert judge(f"{T}/f", days=-1).keep is Keep.YOUNG, "a clock that was ahead"


@pytest.mark.parametrize("named", [f"{T}/f", "s3a://lake/t/f", "s3n://lake/t/f", "S3://lake/t/f", "s3://lake//t//f"])
def test_what_is_named_is_live_however_it_is_written(named: str) -> None:
    assert judge(f"{T}/f", live=[named]).keep is Keep.LIVE


@pytest.mark.parametrize("name", ["a#1", "a b", "a%2Fb", "a?x=1", "a\nb", "caf\u00e9", "cafe\u0301", " a ", "a;b"])
def test_names_are_compared_as_they_are(name: str) -> None:
    assert judge(f"{T}/{name}", live=[f"{T}/{name}"]).keep is Keep.LIVE
    assert judge(f"{T}/other{name}", live=[f"{T}/{name}"]).keep is None


def test_what_pyiceberg_would_open_for_a_name_is_live_as_well() -> None:
    assert judge(f"{T}/a", live=[f"{T}/a#1"]).keep is Keep.LIVE


@pytest.mark.parametrize("name", ["a//b", "a/../b", "a/./b", "folder/"])
def test_names_that_mean_different_files_to_different_clients_stay(name: str) -> None:
    assert judge(Place(place_of(T).kind, "lake", f"t/{name}")).keep is Keep.AMBIGUOUS


@pytest.mark.parametrize(("one", "other"), [("A.parquet", "a.parquet"), ("caf\u00e9", "cafe\u0301"), ("a", "A")])
def test_twins_of_live_and_held_files_stay(one: str, other: str) -> None:
    assert judge(f"{T}/{one}", live=[f"{T}/{other}"]).keep is Keep.TWIN
    assert judge(f"{T}/{one}", held=[f"{T}/{other}"]).keep is Keep.TWIN
    assert judge(f"{T}/{one}", live=[f"{T}/{other}", f"{T}/{one}"]).keep is Keep.LIVE


def test_what_a_run_names_goes_with_the_run_whatever_its_age() -> None:
    assert judge(f"{T}/f", held=[f"{T}/f"]).keep is Keep.HELD
    assert judge(f"{T}/f", free=[("dead", f"{T}/f")], days=0) == Judgement(None, WhyUnneeded.STAGED, "dead")
    assert judge(f"{T}/f", free=[("dead", f"{T}/f")], held=[f"{T}/f"]).keep is Keep.HELD
    assert judge(f"{T}/f", free=[("finished", f"{T}/f")], live=[f"{T}/f"]).keep is Keep.LIVE


@pytest.mark.parametrize("state", RunState)
def test_a_mark_remembers_the_run_whose_receipts_are_gone_and_the_run_is_looked_at_again(state: RunState) -> None:
    found = judge(f"{T}/f", marked=state.value, days=0)
    assert found == Judgement(Keep.HELD if state in ("alive", "resumable") else None, WhyUnneeded.STAGED, state.value)


@pytest.mark.parametrize("state", RunState)
def test_fork_bases_and_receipts_go_with_their_run(state: RunState) -> None:
    base = judge(f"{T}/metadata/00000-fork-{state.value}-0a1b2c3d.metadata.json", days=0)
    keep = Keep.HELD if state in ("alive", "resumable") else None
    assert base == Judgement(keep, WhyUnneeded.FORK, state.value)
    known = Knowledge(places(), StagedFiles(), places(), STATES, NOW, Periods())
    assert known.judge_receipt(state.value) == Judgement(keep, WhyUnneeded.RECEIPT, state.value)


def test_what_looks_like_a_base_of_a_run_that_nobody_asked_about_stays() -> None:
    assert judge(f"{T}/metadata/00000-fork-nobody-0a1b2c3d.metadata.json").keep is Keep.HELD


def test_files_of_another_table_that_was_there_stay() -> None:
    assert judge(f"{T}/f", foreign=[f"{T}/f"]).keep is Keep.FOREIGN


def test_of_them_what_a_run_of_the_dropped_table_had_staged_stays_as_well() -> None:
    assert judge(f"{T}/f", foreign=[f"{T}/f"], free=[("finished", f"{T}/f")]).keep is Keep.FOREIGN
    assert judge(f"{T}/f", foreign=[f"{T}/f"], marked="finished").keep is Keep.FOREIGN
    base = f"{T}/metadata/00000-fork-dead-0a1b2c3d.metadata.json"
    assert judge(base, foreign=[base]) == Judgement(None, WhyUnneeded.FORK, "dead"), "a fork is no table"


def test_checksums_follow_their_owner() -> None:
    assert judge(f"{T}/.f.crc", live=[f"{T}/f"]).keep is Keep.LIVE
    assert judge(f"{T}/.f.crc", held=[f"{T}/f"]).keep is Keep.HELD
    assert judge(f"{T}/.f.crc", foreign=[f"{T}/f"]).keep is Keep.FOREIGN
    assert judge(f"{T}/.f.crc", free=[("dead", f"{T}/f")], days=0).token == "dead"
    assert judge(f"{T}/.f.crc").keep is None
    fork = f"{T}/metadata/.00000-fork-alive-0a1b2c3d.metadata.json.crc"
    assert judge(fork).keep is Keep.HELD


@pytest.mark.parametrize("name", ["f.crc", ".crc", "..crc", ".f.crcs", "crc"])
def test_what_is_no_checksum_is_its_own_owner(name: str) -> None:
    assert crc_owner(place_of(f"{T}/{name}")) == place_of(f"{T}/{name}")
