"""Each rule of moving, purging and reading hot and cold, broken: the model of test_hot_model.py must notice.
The rules and the failures behind them are told in docs/why.md."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis.errors import FlakyFailure
from psycopg2.extensions import connection as Connection
from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.commit import expire, positions
from lakehouse_assets.commit.positions import PositionUpdate
from lakehouse_assets.errors import LakehouseError
from lakehouse_assets.extensions.sources import hot_and_cold, purge
from lakehouse_assets.inputs import hook as inputs
from lakehouse_assets.wire.work import ReadOn
from tests.support.collected import local_site
from tests.support.hot_model import HotModel
from tests.support.hot_world import WRONG
from tests.support.model_site import run

pytestmark = [
    pytest.mark.server,
    pytest.mark.long("Tests of tests: they change when the rules do."),
]


class OnSQLite(HotModel):
    open_site = staticmethod(local_site)


def everywhere(positions_of: Callable[[TableMetadata], ReadOn]) -> AbstractContextManager[object]:
    """Whoever asks how far a table was moved gets this answer."""
    patches = ExitStack()
    for module in (positions, inputs, hot_and_cold):
        patches.enter_context(patch.object(module, "positions_of", positions_of))
    return patches


def in_a_property() -> Any:
    """The position lies in a table property, which no rollback takes back."""
    properties, summary = PositionUpdate.properties, PositionUpdate.summary

    def both(moves: PositionUpdate, metadata: TableMetadata) -> dict[str, str]:
        return properties(moves, metadata) | {f"mutant.{name}": to for name, to in summary(moves, metadata).items()}

    def of_property(metadata: TableMetadata) -> ReadOn:
        found = metadata.properties.get(f"mutant.{positions.POSITIONS}")
        return ReadOn(positions.json.loads(found) if found else {})

    patches = everywhere(of_property)
    patches.enter_context(patch.object(PositionUpdate, "properties", both))  # type: ignore[attr-defined]
    return patches


def without_witness() -> Any:
    """What no snapshot knows counts as never moved."""
    positions_of = positions.positions_of
    return everywhere(lambda metadata: ReadOn(positions_of(metadata).positions))


def not_copied() -> Any:
    """A rewrite says nothing of positions."""
    summary = PositionUpdate.summary
    return patch.object(PositionUpdate, "summary", lambda self, at: summary(self, at) if self.to else {})


def purging_up_to_the_newest() -> Any:
    """What was moved into any snapshot is purged, whether main has it or not."""

    def newest(metadata: TableMetadata, name: str, before_ms: int) -> str | None:
        found = [text for one in metadata.snapshots if (text := positions._entry(one, positions.POSITIONS))]
        return max((positions.json.loads(text)[name] for text in found), key=int_of, default=None)

    return patch.object(purge, "settled", newest)


def int_of(text: str) -> int:
    return int(text.partition("@")[0])


def expiring_the_carrier() -> Any:
    """Nothing keeps the snapshot that says how far the source was moved."""
    return patch.object(expire, "carriers", lambda _: [])


def expiring_what_leads_to_the_carrier() -> Any:
    """The one that says it is kept, and not those in between."""
    carriers = positions.carriers
    return patch.object(expire, "carriers", lambda metadata: carriers(metadata)[-1:])


OWN = (
    in_a_property,
    without_witness,
    not_copied,
    purging_up_to_the_newest,
    expiring_the_carrier,
    expiring_what_leads_to_the_carrier,
)
MUTANTS: dict[str, Callable[[], Any]] = {**WRONG, **{mutant.__name__.replace("_", " "): mutant for mutant in OWN}}


@pytest.mark.timeout(0)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_rule_is_noticed(database: Connection, mutant: str) -> None:
    with MUTANTS[mutant](), pytest.raises((AssertionError, pytest.fail.Exception, LakehouseError, FlakyFailure)):
        run(OnSQLite, (), examples=60, steps=50, always_the_same=True)
