"""The check ``arrivals`` of every table that declares Arrivals, as an op that a person can execute.

What it says is in shown.py; without runs it is evaluated by the sensor.
"""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

import dagster as dg

from lakehouse_assets.declare.table import Table
from lakehouse_assets.queue.decide import parked
from lakehouse_assets.queue.runs import pace_of
from lakehouse_assets.queue.shown import ARRIVALS, DESCRIPTION, verdict
from lakehouse_assets.queue.state import State, state_of
from lakehouse_assets.queue.tick import waiting_of
from lakehouse_assets.run.queue_part import inbox_of
from lakehouse_assets.run.resource import Lakehouse


def arrivals_check(table: Table) -> dg.AssetChecksDefinition:
    """Returns the check of one table. It never fails a run, which has published by then."""

    @dg.asset_check(asset=table.key, name=ARRIVALS, description=DESCRIPTION)
    def look_at(lakehouse: dg.ResourceParam[Lakehouse]) -> dg.AssetCheckResult:
        try:
            state = state_of(lakehouse).read() or State()
            waiting = waiting_of(inbox_of(lakehouse).waiting({table.identifier}))
        except Exception as error:  # whatever the storage raises
            text = f"the inbox could not be read: {error}"
            return dg.AssetCheckResult(passed=False, severity=dg.AssetCheckSeverity.WARN, description=text)
        return dg.AssetCheckResult(**verdict(waiting, parked(waiting, pace_of(table), state.memory), state.memory))

    return look_at
