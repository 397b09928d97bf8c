"""Whatever happens to a table and its source, in any order: readers of both get what is committed, or are refused.
What may happen is in support/hot_model.py; single cases, each with its reason, are in the tests of their subject."""

from __future__ import annotations

import pytest
from psycopg2.extensions import connection as Connection

from tests.support.collected import local_site
from tests.support.hot_model import HotModel
from tests.support.model_site import TABLES, run

pytestmark = pytest.mark.server
HAPPENS = (
    "transactions",
    "moves landed",
    "moves landed, unheard of",
    "moves published again",
    "moves staged again",
    "moves refused",
    "rows given up",
    "rows purged",
    "rows put back",
    "compactions",
    "compactions by others",
    "snapshots expired",
    "positions lost",
    "set behind a purge",
    "files into the trash",
    "reads beside others",
    "reads refused",
)


class OnSQLite(HotModel):
    open_site = staticmethod(local_site)


@pytest.mark.slow("Several orders of events, as a wrong rule shows in few.")
def test_no_read_is_wrong_in_any_order_of_events(database: Connection) -> None:
    run(OnSQLite, (), examples=3, steps=40, always_the_same=True)


@pytest.mark.long("As many orders of events as there is time for; a few of them are in `make test`.")
@pytest.mark.timeout(0)
def test_no_read_is_wrong_in_many_orders_of_events(database: Connection) -> None:
    run(OnSQLite, HAPPENS, examples=TABLES, steps=50)
