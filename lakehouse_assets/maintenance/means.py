"""The means by which the actions of one maintenance run are carried out.

What they do is in actions.py and rewrite_actions.py.
"""

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
    """The means by which the actions of one run are carried out."""

    context: dg.OpExecutionContext
    lakehouse: Lakehouse
    catalog: Catalog
    tables: Mapping[str, Table]
    """The tables by identifier."""
    rates: Rates
    run: RunToken
    """The id and the time of the run that carries out the actions."""
    properties: Mapping[str, str]
    """The properties of the snapshots that actions commit."""
    site: Site
    """What the collector works with."""
    allow_large: bool = False
    """Whether more than a fifth of a table may go to the trash."""
    min_input_files: int = MIN_INPUT_FILES
    """How many small files of a partition are worth a rewrite."""
    reports: list[Report] = field(default_factory=list)
    """What the collector has found so far."""

    def token(self, action: Action) -> RunToken:
        """Returns the token of the action's commit: by it the same run does an action once."""
        return RunToken(f"{self.run.text}.{action.level}.{action.engine}", self.run.created)
