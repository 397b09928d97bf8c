"""The domain nyc."""

from __future__ import annotations

from lakehouse_assets import Domain, tables_of
from lakehouse_assets.domains.nyc import tables
from lakehouse_assets.domains.nyc.automation import monthly_schedule
from lakehouse_assets.domains.nyc.landing import landing
from lakehouse_assets.domains.nyc.release import RELEASE
from lakehouse_assets.domains.nyc.report import monthly_report

DOMAIN = Domain(
    name="nyc",
    tables=tables_of(tables),
    assets=(landing, RELEASE.asset, monthly_report),
    schedules=(monthly_schedule,),
)
