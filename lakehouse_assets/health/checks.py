"""The checks ``files``, ``history`` and ``storage`` of every declared table, as an op that a person can execute.

What they say is in health_verdicts.py; without runs they are evaluated by health_sensor.py.
"""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

import time
from collections.abc import Callable, Iterator

import dagster as dg

from lakehouse_assets.declare.table import Table
from lakehouse_assets.health.findings import Check
from lakehouse_assets.health.health_reader import HealthReader
from lakehouse_assets.health.health_verdicts import DESCRIPTIONS, Verdicts, not_there, unreadable, verdicts
from lakehouse_assets.run.resource import Lakehouse


def health_checks(table: Table) -> dg.AssetChecksDefinition:
    """Returns the three checks of a table's health.

    Dagster adds them to every materialization of the asset; checks that it does not add have no *Execute* button. It
    costs a run about 0.25 s of CPU (a day of flights takes 12 to 15 s): 0.04 s to look, the rest is Dagster's step and
    events. In return a table's health is known right after what changes it. The checks never fail a run, which has
    published by then: what goes wrong is a warning of the checks themselves.
    """
    specs = [dg.AssetCheckSpec(check.value, asset=table.key, description=DESCRIPTIONS[check]) for check in Check]

    @dg.multi_asset_check(name=f"health__{'__'.join(table.key.path)}", specs=specs, can_subset=True)
    def look_at(
        context: dg.AssetCheckExecutionContext, lakehouse: dg.ResourceParam[Lakehouse]
    ) -> Iterator[dg.AssetCheckResult]:
        found = verdicts_now(table, lambda: HealthReader.of(lakehouse, lakehouse.catalog(), context.instance))
        for key in sorted(context.selected_asset_check_keys):
            check = Check(key.name)
            yield found[check].result(table.key, check)

    return look_at


def verdicts_now(table: Table, open_reader: Callable[[], HealthReader]) -> Verdicts:
    """Returns what the checks say of the table as it is now.

    Raises nothing: what can't be read is a warning of the checks.
    """
    try:
        reader = open_reader()
        loaded = reader.load(table)
        return not_there() if loaded is None else verdicts(reader.health(table, loaded), int(time.time() * 1000))
    except Exception as error:  # whatever it is: the run's rows are published, and a failed check would fail the run
        return unreadable(error)
