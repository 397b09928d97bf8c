"""A code location for runs in processes of their own: ``demo.numbers``, filled by tiny workers.
What those do is in tiny_worker.py."""

from __future__ import annotations

import dagster as dg

from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.run.asset import table_asset
from tests.support.faults import FaultyLakehouse, tiny

defs = dg.Definitions(
    [table_asset(tiny(), EXTENSIONS)],
    resources={"lakehouse": FaultyLakehouse(read_settings())},
    executor=dg.in_process_executor,
)
