"""This repository's code location, built anew for the environment of a test."""

from __future__ import annotations

from typing import Any

import dagster as dg

from lakehouse_assets import Domain, code_location
from lakehouse_assets.definitions import DOMAINS
from resources.reports import reports_at_home


def build_defs(*domains: Domain, **resources: Any) -> dg.Definitions:
    return code_location(*(domains or DOMAINS), resources={"reports": reports_at_home(), **resources})
