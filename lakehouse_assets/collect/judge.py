"""Decides whether a listed file may go, by rules in a fixed order over what is known of a table. All of it is pure.

What is known is gathered in seen.py; when a file that may go is due is decided in collect.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from lakehouse_assets.collect.leases import HELD, Periods, RunState, StagedFiles, is_over, token_of_base
from lakehouse_assets.collect.listing import Listed
from lakehouse_assets.collect.reachable import PlaceSet, digest
from lakehouse_assets.storage.place import crc_owner


class Keep(StrEnum):
    """The reason why a file stays."""

    LIVE = "live"
    HELD = "held by a run that may still need it"
    YOUNG = "too young: a worker or another writer may still name it"
    FOREIGN = "named by metadata that the catalog lacks: of a table that was here before, or of a commit beside its own"
    AMBIGUOUS = "its name means different files to different clients"
    TWIN = "differs from a live file's name only by case or Unicode normalisation"


class WhyUnneeded(StrEnum):
    """The reason why a file may go."""

    UNNAMED = "no snapshot and no run names it"
    STAGED = "staged by a run"
    FORK = "fork base of a run"
    RECEIPT = "receipt of a run"


class Judgement(NamedTuple):
    """The answer for one file."""

    keep: Keep | None
    """Why the file stays; None if it may go."""
    why: WhyUnneeded = WhyUnneeded.UNNAMED
    """Why it may go."""
    token: str | None = None
    """The run that the file belonged to, if any."""


LIVE = Judgement(Keep.LIVE)


@dataclass(frozen=True)
class Knowledge:
    """Everything that decides about a table's files, as it was read after they were listed."""

    live: PlaceSet
    """Places that snapshots, the metadata log, statistics and other tables name."""
    staged: StagedFiles
    foreign: PlaceSet
    """Places that metadata files name which lie in the table's folders and not in the catalog, where somebody may still
    need them."""
    states: Mapping[str, RunState]
    """The state of every token that has files."""
    now_ms: int
    periods: Periods

    def judge(self, file: Listed, marked: str | None) -> Judgement:
        """Decides whether a file in the table's folders may go.

        marked: the token in the file's mark, from when the run's receipts were still there.
        """
        place, owner = file.place, crc_owner(file.place)
        keys = (digest(place),) if owner is place else (digest(owner), digest(place))
        if any(map(self.live.has, keys)):
            return LIVE
        if place.is_ambiguous:
            return Judgement(Keep.AMBIGUOUS)
        if any(map(self.staged.held.has, keys)):
            return Judgement(Keep.HELD)
        if self.live.has_twin(owner) or self.staged.held.has_twin(owner):
            return Judgement(Keep.TWIN)
        if base := token_of_base(owner):
            return self._of_run(base, WhyUnneeded.FORK)
        if any(map(self.foreign.has, keys)):  # also what runs had staged for the other table, and it had published
            return Judgement(Keep.FOREIGN)
        if token := self.staged.free.get(keys[0]) or marked:
            return self._of_run(token, WhyUnneeded.STAGED)
        return Judgement(None if is_over(self.periods.unnamed, file.modified_ms, self.now_ms) else Keep.YOUNG)

    def judge_receipt(self, token: str) -> Judgement:
        """Decides whether a file in a run's folder of receipts may go."""
        return self._of_run(token, WhyUnneeded.RECEIPT)

    def _of_run(self, token: str, why: WhyUnneeded) -> Judgement:
        # A token that nobody asked about has no state.
        return Judgement(Keep.HELD if self.states.get(token, RunState.ALIVE) in HELD else None, why, token)
