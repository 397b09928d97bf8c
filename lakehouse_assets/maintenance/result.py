"""The result of the work on one table, in one form for all levels and engines.

Data only. What it cost, and how the table was before and after, is added by actions.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakehouse_assets.health.gain import Gain
from lakehouse_assets.maintenance.memory import Ending
from resources.launchers.base import Usage


@dataclass(frozen=True)
class Result:
    """The result of the work on one table."""

    ending: Ending
    gain: Gain = field(default_factory=Gain)
    """What there is less of, removed by this work alone."""
    size: int = 0
    """Bytes that were rewritten, dropped ones included."""
    summary: str = ""
    """For a person to read."""
    proof: str = ""
    """What was compared, of a rewrite."""
    dropped: tuple[str, ...] = ()
    """Parts that did not land, each with its reason."""
    faults: tuple[str, ...] = ()
    """What must be shown in red, a sentence each."""
    partitions: Mapping[str, Ending] = field(default_factory=dict)
    """How each partition fared, by PartitionHealth.id."""
    usages: tuple[Usage, ...] = ()
    """What the workers used that did it; empty where the run's own process did it."""

    def __add__(self, other: Result) -> Result:
        """Joins the results of one action that two engines carried out, each its part.

        It failed if one part failed; else it is done if one part is done.
        """
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
