"""The domain trade."""

from __future__ import annotations

from lakehouse_assets import Domain, tables_of
from lakehouse_assets.domains.trade import tables
from lakehouse_assets.domains.trade.landing import landing
from lakehouse_assets.domains.trade.report import exports_by_month

DOMAIN = Domain(name="trade", tables=tables_of(tables), assets=(landing, exports_by_month))
