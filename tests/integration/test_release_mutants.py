"""Each rule of releases, broken: a test that watches over it must notice.
The rules and the failures behind them are told in docs/why.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from lakehouse_assets.commit.snapshot import LeanTransaction
from lakehouse_assets.errors import NoSuchRelease
from lakehouse_assets.extensions.releases import pointer as readers
from lakehouse_assets.extensions.releases import publish_release
from lakehouse_assets.extensions.releases.consistency import Log
from lakehouse_assets.extensions.releases.pointer import KeptRelease, Pointer, _to_arrow
from tests.integration import test_releases as tests
from tests.integration.test_releases import demo as demo
from tests.integration.test_releases import first_release as first_release
from tests.support.releases import ReleasedLake

pytestmark = pytest.mark.long("Tests of tests: they change when the rules do.")
Patch = pytest.MonkeyPatch
Noticed = Callable[[ReleasedLake, Patch], None]


def tags_behind_the_pointer(patch: Patch) -> None:
    """Members are tagged once the release is there."""
    tag, move = publish_release.tag_members, Pointer.move
    late: list[tuple[Any, ...]] = []

    def moved(pointer: Pointer, releases: Sequence[KeptRelease]) -> None:
        move(pointer, releases)
        tag(*late.pop())

    patch.setattr(publish_release, "tag_members", lambda *those: late.append(those))
    patch.setattr(Pointer, "move", moved)


def not_looked_at_again(patch: Patch) -> None:
    """What became of a member between its pin and its tag is not asked."""
    patch.setattr(publish_release, "_check", lambda member, found: None)
    patch.setattr(publish_release, "tag_members", lambda catalog, order, members: None)


def over_whatever_is_there(patch: Patch) -> None:
    """The pointer is moved though another release has moved it meanwhile."""

    def move(pointer: Pointer, releases: Sequence[KeptRelease]) -> None:
        now = replace(pointer, table=pointer.table.catalog.load_table(pointer.table.name()))
        transaction = LeanTransaction(now.table)
        transaction.overwrite(_to_arrow(releases))
        transaction.commit_transaction()

    patch.setattr(Pointer, "move", move)


def members_before_the_pointer(patch: Patch) -> None:
    """The pointer is loaded when the members are pinned already."""
    pin, attempt = publish_release.pin_members, publish_release._attempt
    pinned: list[Any] = []

    def early(catalog: Any, order: Any, log: Any) -> Any:
        pinned.append(pin(catalog, order, None))
        try:
            return attempt(catalog, order, log)
        finally:
            pinned.pop()

    patch.setattr(publish_release, "_attempt", early)
    patch.setattr(publish_release, "pin_members", lambda *_: pinned[-1])


def heads(patch: Patch) -> None:
    """Readers get each table as it is now."""
    patch.setattr(readers.Released, "scan", lambda self, table, **options: self.load(table).scan(**options))


def any_table(patch: Patch) -> None:
    """A table that was created again is taken for the member."""
    load = readers.Released.load

    def loaded(released: readers.Released, table: str) -> Any:
        uuid = str(released.catalog.load_table(table).metadata.table_uuid)
        members = {name: replace(one, uuid=uuid) for name, one in released.members.items()}
        return load(replace(released, members=members), table)

    patch.setattr(readers.Released, "load", loaded)


def made_of_anything(patch: Patch) -> None:
    """What a member was made from is not asked."""
    patch.setattr(Log, "stale_members", lambda *_: iter(()))


def without_the_pointer(patch: Patch) -> None:
    """Expiry goes by tags alone."""
    patch.setattr(tests, "released_snapshots", lambda *_: set[int]())


def before_a_step(step: str, act: Callable[[ReleasedLake], None]) -> Noticed:
    test = tests.test_readers_get_one_whole_release_whatever_others_do_before_a_step
    return lambda demo, patch: test(demo, step, act, patch)


def created_again(demo: ReleasedLake, _: Patch) -> None:
    tests.create_again(demo)
    with pytest.raises(NoSuchRelease, match="created again"):
        demo.read().scan("demo.raw")


def only(test: Callable[[ReleasedLake], None]) -> Noticed:
    return lambda demo, _: test(demo)


MUTANTS: list[tuple[Callable[[Patch], None], Noticed]] = [
    (tags_behind_the_pointer, before_a_step("move", tests.write_and_expire)),
    (not_looked_at_again, before_a_step("tag_members", tests.write_and_expire)),
    (over_whatever_is_there, before_a_step("move", tests.release_newer)),
    (members_before_the_pointer, before_a_step("open_pointer", tests.release_newer)),
    (heads, only(tests.test_readers_get_what_was_released_whatever_is_written_meanwhile)),
    (any_table, created_again),
    (made_of_anything, only(tests.test_a_member_made_anew_without_those_made_from_it_is_refused)),
    (without_the_pointer, only(tests.test_a_released_snapshot_does_not_expire_although_its_tag_is_gone)),
]


@pytest.mark.parametrize(("mutant", "noticed"), MUTANTS, ids=[mutant.__name__ for mutant, _ in MUTANTS])
def test_a_broken_rule_is_noticed(demo: ReleasedLake, monkeypatch: Patch, mutant: Any, noticed: Any) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, NoSuchRelease, pytest.fail.Exception)):
        noticed(demo, monkeypatch)
