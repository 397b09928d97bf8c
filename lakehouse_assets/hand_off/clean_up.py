"""Removes versions that nobody gets any more: their tables in Glue, their files, their records, in this order.

Only what records name is looked at. What readers get, and what a run may still finish, stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from lakehouse_assets.collect.leases import HELD, Chain, Periods, state_of
from lakehouse_assets.hand_off.glue_inputs import VERSION, of_parameters
from lakehouse_assets.hand_off.glue_registry import GlueRegistry
from lakehouse_assets.hand_off.records import HandOffPlan, Left, Records, Version
from lakehouse_assets.hand_off.waits import Clock
from lakehouse_assets.storage.objects import delete_all
from lakehouse_assets.storage.place import place_of
from lakehouse_assets.storage.raw_s3 import keys_below, milliseconds


@dataclass(frozen=True)
class Remover:
    """Removes versions."""

    records: Records
    registry: GlueRegistry
    s3: Any
    """A client of the bucket of the versions."""
    clock: Clock

    def remove(self, version: Version) -> None:
        """Removes all of a version; what is gone already is no error. Raises what AWS and the staging prefix raise."""
        self.registry.drop(version)
        folder = place_of(version.location)
        assert folder.key.endswith(f"/{version.name}")  # made by hand_over.begin_version()
        delete_all(self.s3, folder.bucket, keys_below(self.s3, folder.child("")))
        self.records.forget(version)


def clean_up(
    remover: Remover,
    plan: HandOffPlan,
    keep: timedelta,
    chains_of: Callable[[Collection[str]], Mapping[str, Chain]],
) -> list[Version]:
    """Removes the versions that a hand-off saw ``keep`` ago, or earlier, to be no longer what readers get.

    Those that it sees so for the first time are noted. chains_of: what Dagster knows of runs, by token.

    Returns what was removed. Raises as Remover.remove(); what is left then goes with the next hand-off.
    """
    records, now = remover.records, remover.clock.now()
    versions = records.versions()
    known = chains_of({one.token for one in versions})
    view = remover.registry.find_view(plan)  # behind the list: a version that is begun from now on is not in it
    current = of_parameters(view or {}).get(VERSION)
    left = records.left()
    removed = []
    for version in versions:
        since = left.get(version.name)
        if version.name == current:
            if since:
                records.forget_left(version.name)
        elif not _may_be_finished(version, known.get(version.token), now):
            if since is None:
                records.note_left(version.name, Left(now))
            elif now - since.seen_at >= keep:
                remover.remove(version)
                removed.append(version)
    return removed


def _may_be_finished(version: Version, chain: Chain | None, now: datetime) -> bool:
    return state_of(chain, milliseconds(version.began_at), milliseconds(now), Periods()) in HELD
