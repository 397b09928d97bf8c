"""What the work on one table tells of itself, whatever the level and the engine. Data only.
What it cost, and how the table was before and after, is added by actions.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakehouse_assets.health.gain import Gain
from lakehouse_assets.maintenance.memory import Ending
from resources.launchers.base import Usage


@dataclass(frozen=True)
class Result:
    """gain: what there is less of, removed by this work alone. size: bytes that were rewritten, dropped ones included.
    summary: a person reads it. proof: of a rewrite, what was compared. dropped: parts that did not land, each with its
    reason. faults: what must be shown in red, sentences. partitions: how each fared, by PartitionHealth.id. usages:
    of the workers that did it; none where the run's own process did."""

    ending: Ending
    gain: Gain = field(default_factory=Gain)
    size: int = 0
    summary: str = ""
    proof: str = ""
    dropped: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    partitions: Mapping[str, Ending] = field(default_factory=dict)
    usages: tuple[Usage, ...] = ()

    def __add__(self, other: Result) -> Result:
        """Of one action that two engines carried out, each its part."""
        return Result(
            max(self.ending, other.ending, key=[Ending.CONFLICT, Ending.DONE, Ending.FAILED].index),
            self.gain + other.gain,
            self.size + other.size,
            "; ".join(filter(None, (self.summary, other.summary))),
            "; ".join(filter(None, (self.proof, other.proof))),
            self.dropped + other.dropped,
            self.faults + other.faults,
            {**self.partitions, **other.partitions},
            self.usages + other.usages,
        )
