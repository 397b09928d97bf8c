"""What the actions of one maintenance run are carried out with.
What they do is in actions.py and rewrite_actions.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import dagster as dg
from pyiceberg.catalog import Catalog

from lakehouse_assets.collect.pass_report import Report
from lakehouse_assets.collect.site import Site
from lakehouse_assets.commit.tokens import RunToken
from lakehouse_assets.declare.table import Table
from lakehouse_assets.maintenance.costs import Rates
from lakehouse_assets.maintenance.planned import Action
from lakehouse_assets.rewrite.rewrite_plan import MIN_INPUT_FILES
from lakehouse_assets.run.resource import Lakehouse


@dataclass(frozen=True)
class Means:
    """What actions are carried out with. run: the id and time of the run that does it; the same run does an action
    once. properties: of the snapshots. site: what the collector works with; reports: what it found so far. allow_large:
    whether more than a fifth of a table may go to the trash. min_input_files: how many small files of a partition are
    worth a rewrite."""

    context: dg.OpExecutionContext
    lakehouse: Lakehouse
    catalog: Catalog
    tables: Mapping[str, Table]
    rates: Rates
    run: RunToken
    properties: Mapping[str, str]
    site: Site
    allow_large: bool = False
    min_input_files: int = MIN_INPUT_FILES
    reports: list[Report] = field(default_factory=list)

    def token(self, action: Action) -> RunToken:
        """Of the action's commit."""
        return RunToken(f"{self.run.text}.{action.level}.{action.engine}", self.run.created)
