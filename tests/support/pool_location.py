"""A code location for tests of pools and of the UI: one daily table filled by light workers, one by a real worker.
No tests here; what the light workers do is in light_worker.py."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import dagster as dg

from lakehouse_assets.environment.launchers.base import Attempt, Handle
from lakehouse_assets.environment.launchers.local import LocalLauncher
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.run.asset import table_asset
from lakehouse_assets.run.resource import WORKER, Lakehouse
from tests.support.tables import numbers

# One worker a day. The step is only read: light workers run none.
light = numbers(identifier="demo.light", partitions_per_worker=1)
endless = numbers("endless", identifier="demo.endless")


class LightLauncher(LocalLauncher):
    """The local launcher, with another program started for the light table."""

    light = LocalLauncher([sys.executable, "-m", "tests.support.light_worker"])

    def submit(self, attempt: Attempt, environment: Mapping[str, str]) -> Handle:
        if attempt.subject == light.identifier:
            return self.light.submit(attempt, environment)
        return super().submit(attempt, environment)


lakehouse = Lakehouse(read_settings())
lakehouse.launcher = lambda compute: LightLauncher((sys.executable, "-m", WORKER))

defs = dg.Definitions(
    [table_asset(light, EXTENSIONS), table_asset(endless, EXTENSIONS)],
    resources={"lakehouse": lakehouse},
    executor=dg.in_process_executor,
)
