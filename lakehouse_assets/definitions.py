"""The code location of this repository."""

import os

from lakehouse_assets import code_location
from lakehouse_assets.domains.nyc.domain import DOMAIN as NYC
from lakehouse_assets.domains.trade.domain import DOMAIN as TRADE
from resources.reports import reports_at_home

DOMAINS = [NYC, TRADE]
# `make ui EVENTS=1` sets the variable; elsewhere the sources of this domain are missing.
if "KAFKA_BOOTSTRAP_SERVERS" in os.environ:
    from lakehouse_assets.domains.live.domain import DOMAIN as LIVE

    DOMAINS.append(LIVE)

defs = code_location(*DOMAINS, resources={"reports": reports_at_home()})
