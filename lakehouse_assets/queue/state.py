"""Keeps what the queue's sensor remembers from tick to tick, as one small object on the staging prefix.

It outlives the sensor's cursor, which a person may reset; what is remembered is strikes.py's.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from lakehouse_assets.protocol.versions import with_version, without_version
from lakehouse_assets.queue.runs import Pending
from lakehouse_assets.queue.strikes import Breaker, QueueMemory, RunLimit, Strikes
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.storage.objects import Objects, objects_at
from lakehouse_assets.storage.place import place_of
from resources.catalog import catalog_properties

logger = logging.getLogger(__name__)
NAME = "state.json"


@dataclass(frozen=True)
class State:
    """The state of the queue's sensor between two ticks."""

    memory: QueueMemory = field(default_factory=QueueMemory)
    learned: tuple[str, ...] = ()
    """The ids of the runs that ended and that the memory knows of."""
    pending: tuple[Pending, ...] = ()
    """The runs that were asked for just now."""

    @classmethod
    def from_json(cls, text: str) -> State:
        """Reads a state. Raises ValueError, for a torn or foreign file also TypeError, KeyError or AttributeError."""
        fields = without_version(json.loads(text))
        pending = tuple(Pending(**{**one, "keys": tuple(one["keys"])}) for one in fields["pending"])
        return cls(_memory(fields["memory"]), tuple(fields["learned"]), pending)

    def to_json(self) -> str:
        """Returns the state as JSON with its version, as from_json() reads it."""
        fields = asdict(self)
        strikes = [[*wanted, asdict(found)] for wanted, found in sorted(self.memory.strikes.items())]
        fields["memory"]["strikes"] = strikes
        return json.dumps(with_version(fields), default=sorted)  # sorted: JSON has no sets


def _memory(fields: Mapping[str, Any]) -> QueueMemory:
    strikes = {(table, key): _strikes(found) for table, key, found in fields["strikes"]}
    limits = {table: RunLimit(**found) for table, found in fields["limits"].items()}
    breakers = {table: Breaker(**found) for table, found in fields["breakers"].items()}
    return QueueMemory(strikes, limits, breakers, fields["served"])


def _strikes(fields: Mapping[str, Any]) -> Strikes:
    return Strikes(**{**fields, "runs": tuple(fields["runs"]), "seen": frozenset(fields["seen"])})


@dataclass(frozen=True)
class StateStore:
    """The place where a code location keeps its state."""

    objects: Objects
    """The objects below ``<LAKEHOUSE_STAGING>/queue``."""

    def read(self) -> State | None:
        """Returns the state; None if there is none that this version can read. Raises what the storage raises."""
        try:
            return State.from_json(self.objects.read(NAME).decode())
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            logger.warning("%s can't be used, failures are forgotten: %s", NAME, error)
            return None

    def write(self, state: State) -> None:
        """Replaces the state. Raises what the storage raises."""
        self.objects.write(NAME, state.to_json().encode())


def state_of(lakehouse: Lakehouse) -> StateStore:
    """Returns the place of a code location's state."""
    settings = lakehouse.settings
    return StateStore(objects_at(catalog_properties(settings), place_of(settings.staging).child("queue")))
