"""What the work on one table tells of itself, whatever the level and the engine. Data only.
What it cost, and how the table was before and after, is added by actions.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakehouse_assets.maintenance.memory import Ending
from lakehouse_assets.maintenance.planned import Gain


@dataclass(frozen=True)
class Result:
    """gain: what there is less of, removed by this work alone. size: bytes that were rewritten, dropped ones included.
    summary: a person reads it. proof: of a rewrite, what was compared. dropped: parts that did not land, each with its
    reason. faults: what must be shown in red, sentences. partitions: how each fared, by memory.partition_id(). start:
    seconds until the engine had started; None where it is not known."""

    ending: Ending
    gain: Gain = field(default_factory=Gain)
    size: int = 0
    summary: str = ""
    proof: str = ""
    dropped: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    partitions: Mapping[str, Ending] = field(default_factory=dict)
    start: float | None = None
