"""Merges and a changed declaration on a REST catalog and S3, from step to table, with one Spark for all tests.
What they must do in every case is in test_merge.py and test_schema_change_runs.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import dagster as dg
import pytest
from pyiceberg.exceptions import NoSuchTableError

from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.modes import Append, Merge, Rewrites
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import Settings, read_settings
from lakehouse_assets.worker.session import stop_session
from tests.conftest import Lake, failure_text
from tests.support.merges import PLAIN, found, give, logged, merged, others, row, table
from tests.support.servers import SeaweedFS, configured
from tests.support.twins import twins

pytestmark = [pytest.mark.spark, pytest.mark.server]
WHILE_OTHERS_WRITE = "tests.support.change_steps:rows_while_others_write"


@pytest.fixture(scope="module", autouse=True)
def own_session() -> Iterator[None]:
    """A session keeps the catalogs that it has loaded: neither another file's tests nor these see the other's."""
    stop_session()
    yield
    stop_session()


@pytest.fixture
def lake(settings: Settings, instance: dg.DagsterInstance, weed: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Without ``demo.rows``: the catalog is all tests' one."""
    monkeypatch.setenv("LAKEHOUSE_COMPUTE", "inline")
    configured(weed.properties(), monkeypatch)
    settings.home.mkdir(exist_ok=True)
    lake = Lake(read_settings(), instance)
    with suppress(NoSuchTableError):
        load_lake(lake.settings).drop_table("demo.rows")
    return lake


def run(lake: Lake, of: Table) -> dg.ExecuteInProcessResult:
    result = lake.run(of)
    assert result.success, failure_text(result)
    return result


@pytest.mark.slow("The only merge through a REST catalog.")
@pytest.mark.parametrize("rewrites", twins(Rewrites, "test_merge.py has both on SQLite."))
def test_changes_insert_update_and_delete_rows(lake: Lake, rewrites: Rewrites) -> None:
    of = table(Merge(["id"], delete_when="op = 'D'", order_by="at", rewrites=rewrites))
    give(lake, *(row(id, 0) for id in range(4)))
    run(lake, of)
    give(lake, row(1, 1), row(2, 2, op="D"), row(3, 3, day="2024-01-02"), row(11, 11), row(12, 12, op="D"))
    counts = merged(run(lake, of))
    first, second = "2024-01-01", "2024-01-02"
    assert found(lake, of) == {0: (first, 0), 1: (first, 1), 3: (second, 3), 11: (first, 11)}
    assert counts == {"changes": 5, "left_out": 0, "matched": 3, "inserted": 1, "updated": 2, "deleted": 1}
    assert lake.snapshots(of) == 2


@pytest.mark.long("Repeats on a REST catalog what test_merge.py holds for SQLite.")
def test_a_merge_whose_rows_others_changed_is_staged_again(lake: Lake) -> None:
    of = table(step=WHILE_OTHERS_WRITE)
    others(lake)
    give(lake, row(1, 1), row(9, 1))
    run(lake, of)
    others(lake, row(5, 7))
    give(lake, row(1, 2, at=2), row(5, 8, at=2), row(9, 2, at=2))
    result = run(lake, of)
    assert {id: n for id, (_, n) in found(lake, of).items()} == {1: 2, 5: 8, 9: 2}
    assert "staged again" in logged(lake, result)


@pytest.mark.long("Repeats on a REST catalog what test_merge.py holds for SQLite.")
def test_an_append_leaves_out_what_is_there_and_what_others_added_meanwhile(lake: Lake) -> None:
    of = table(Append(dedup_on=["id"]), step=WHILE_OTHERS_WRITE)
    others(lake)
    give(lake, row(1, 1), row(2, 1), columns=PLAIN)
    run(lake, of)
    others(lake, row(3, 5))
    give(lake, row(2, 2), row(3, 2), row(4, 2), row(4, 2), columns=PLAIN)
    counts = merged(run(lake, of))
    assert {id: n for id, (_, n) in found(lake, of).items()} == {1: 1, 2: 1, 3: 5, 4: 2}
    assert counts == {"changes": 4, "left_out": 1, "matched": 2, "inserted": 1, "updated": 0, "deleted": 0}


@pytest.mark.long("Repeats on a REST catalog what test_schema_change_runs.py holds for SQLite.")
def test_a_merge_adds_and_widens_columns_in_the_commit_of_its_rows(lake: Lake) -> None:
    known = [column("id", "long", required=True), column("day", "date")]
    text = column("text", "string")
    old = table(Merge(["id"]), columns=[*known, column("n", "int"), text])
    give(lake, row(1, 1), row(2, 2), columns=PLAIN)
    run(lake, old)
    before = lake.table(old)
    new = table(
        Merge(["id"]),
        columns=[*known, column("n", "long"), text, column("extra", "string")],
        on_schema_change="append_new_columns",
    )
    give(lake, row(2, 2**40) | {"extra": "x"}, row(3, 3) | {"extra": "y"}, columns=(*PLAIN, "extra"))
    run(lake, new)
    after = lake.table(new)
    assert after.metadata.metadata_log[-1].metadata_file == before.metadata_location, "one commit"
    rows = {r["id"]: (r["n"], r["extra"]) for r in lake.rows(new).to_pylist()}
    assert rows == {1: (1, None), 2: (2**40, "x"), 3: (3, "y")}
    assert before.scan().to_arrow().schema.names == [*PLAIN]
