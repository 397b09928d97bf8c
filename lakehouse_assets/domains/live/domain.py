"""The domain live."""

from __future__ import annotations

from lakehouse_assets import Domain, tables_of
from lakehouse_assets.domains.live import tables
from lakehouse_assets.domains.live.report import delays_now, each_minute

DOMAIN = Domain(name="live", tables=tables_of(tables), assets=(delays_now,), schedules=(each_minute,))
