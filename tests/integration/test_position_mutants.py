"""Each rule of reading on, broken: a test that watches over it must notice.
The rules and the failures behind them are told in docs/why.md."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata
from pyspark.sql import DataFrame

from lakehouse_assets.commit import positions
from lakehouse_assets.commit.positions import PositionUpdate
from lakehouse_assets.inputs import hook as of_run
from lakehouse_assets.inputs import worker as inputs
from lakehouse_assets.inputs.worker import ReadInputs
from lakehouse_assets.wire.work import Pin, ReadOn
from tests.conftest import Lake
from tests.integration import test_input_changes as tests
from tests.integration.test_input_changes import source as source

pytestmark = [
    pytest.mark.spark,
    pytest.mark.usefixtures("inline"),
    pytest.mark.long("Tests of tests: they change when the rules do."),
]
Patch = pytest.MonkeyPatch


def in_a_property(patch: Patch) -> None:
    """Positions lie in a table property, which no rollback takes back."""
    properties, summary = PositionUpdate.properties, PositionUpdate.summary
    patch.setattr(PositionUpdate, "properties", lambda self, at: properties(self, at) | _as_property(summary(self, at)))
    patch.setattr(positions, "_entry", lambda snapshot, name: None)
    patch.setattr(positions, "positions_of", lambda at: ReadOn(_of_property(at)))
    patch.setattr(of_run, "positions_of", positions.positions_of)


def _as_property(summary: dict[str, str]) -> dict[str, str]:
    return {f"mutant.{name}": text for name, text in summary.items()}


def _of_property(at: TableMetadata) -> dict[str, str]:
    found: dict[str, str] = json.loads(at.properties.get(f"mutant.{positions.POSITIONS}", "{}"))
    return found


def of_the_newest_snapshot(patch: Patch) -> None:
    """The newest snapshot counts, whether it led to main's head or not."""
    newest_first = lambda at: iter(sorted(at.snapshots, key=lambda one: -(one.sequence_number or 0)))  # noqa: E731
    patch.setattr(positions, "_main", newest_first)


def without_witness(patch: Patch) -> None:
    """What no snapshot knows counts as never read."""
    positions_of = positions.positions_of
    patch.setattr(positions, "positions_of", lambda at: ReadOn(positions_of(at).positions))
    patch.setattr(of_run, "positions_of", positions.positions_of)


def without_comparing(patch: Patch) -> None:
    """A run publishes what another has read meanwhile, too."""
    patch.setattr(PositionUpdate, "refuse", lambda self, now: None)


def not_copied(patch: Patch) -> None:
    """A rewrite says nothing of positions."""
    summary = PositionUpdate.summary
    patch.setattr(PositionUpdate, "summary", lambda self, at: summary(self, at) if self.to else {})


def kept_pins(patch: Patch) -> None:
    """A run that begins again, since another has read on, reads up to where it wanted to at first."""
    pinned, kept = of_run.PinnedInputs._pinned, dict[str, Any]()
    patch.setattr(of_run.PinnedInputs, "_pinned", lambda self, run: kept.setdefault(run.token.text, pinned(self, run)))


def appends_only(patch: Patch) -> None:
    """Added files are read, whatever else happened."""
    appended = lambda self, pin, since, until: self._appended(pin, since, until, is_empty=False)  # noqa: E731
    patch.setattr(ReadInputs, "_netted", appended)


def not_netted(patch: Patch) -> None:
    """What came and went again shows."""

    def gross(self: ReadInputs, pin: Pin, since: int, until: int) -> DataFrame:
        reader = self.spark.read.option("start-snapshot-id", since).option("end-snapshot-id", until)
        return reader.table(f"lake.{pin.table}.changes").drop(*inputs.OF_ICEBERG)

    patch.setattr(ReadInputs, "_netted", gross)


def with_row_level_deletes(patch: Patch) -> None:
    """Deletes by row are not looked for."""
    patch.setattr(inputs, "_has_deletes", lambda snapshot, io: False)
    appended = lambda self, pin, since, until: self._appended(pin, since, until, is_empty=False)  # noqa: E731
    patch.setattr(ReadInputs, "_netted", appended)


def any_history(patch: Patch) -> None:
    """What was read need not be in the history of what is."""
    between = inputs.snapshots_between
    patch.setattr(inputs, "snapshots_between", lambda *those: between(*those) or [])
    patch.setattr(ReadInputs, "_appended", lambda self, pin, *_, **__: self.spark.table(f"lake.{pin.name}").limit(0))


def any_column(patch: Patch) -> None:
    """Columns are taken for the same by their names."""
    patch.setattr(inputs, "changed_columns", lambda *_: [])


def any_table(patch: Patch) -> None:
    """A table that was created again is taken for the same."""
    parse = inputs.Position.parse

    class Anybody:
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None

    patch.setattr(inputs.Position, "parse", lambda text: parse(text)._replace(uuid=Anybody()))


def is_told(act: Any, says: str) -> Callable[[Lake, IcebergTable], None]:
    return lambda lake, source: tests.test_what_cannot_be_told_apart_is_refused_and_read_all_is_a_way_out(
        lake, source, act, says
    )


MUTANTS: list[tuple[Callable[[Patch], None], Callable[[Lake, IcebergTable], None]]] = [
    (in_a_property, tests.test_a_rollback_of_the_table_goes_back_in_the_input),
    (of_the_newest_snapshot, tests.test_a_rollback_of_the_table_goes_back_in_the_input),
    (without_witness, is_told(tests.position_expired, "no snapshot of main")),
    (without_comparing, tests.test_of_two_runs_at_once_the_second_reads_on_where_the_first_has_ended),
    (kept_pins, tests.test_of_two_runs_at_once_the_second_reads_on_where_the_first_has_ended),
    (not_copied, tests.test_compaction_of_either_changes_nothing),
    (appends_only, tests.test_each_change_is_read_once_and_what_cancels_out_not_at_all),
    (not_netted, tests.test_each_change_is_read_once_and_what_cancels_out_not_at_all),
    (with_row_level_deletes, is_told(tests.deleted_row_by_row, "row-level deletes")),
    (any_history, is_told(tests.rolled_back, "main was rolled back")),
    (any_column, is_told(tests.column_dropped_and_added_again, "columns text were dropped and added again")),
    (any_table, is_told(tests.created_again, "was created again")),
]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    yield
    tests.steps.MEANWHILE.clear()


@pytest.mark.parametrize(("mutant", "noticed"), MUTANTS, ids=[mutant.__name__ for mutant, _ in MUTANTS])
def test_a_broken_rule_is_noticed(
    lake: Lake, source: IcebergTable, monkeypatch: Patch, mutant: Any, noticed: Any
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        noticed(lake, source)
