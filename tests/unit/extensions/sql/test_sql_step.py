"""Where the file of a SQL step is found, what of it decides a hash, and which inputs the code location gets of it."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module, invalidate_caches
from pathlib import Path

import dagster as dg
import pytest

from lakehouse_assets.build_location import code_location
from lakehouse_assets.declare.table import Table
from lakehouse_assets.errors import DeclarationError
from lakehouse_assets.extensions.sql.sql_step import SqlStep
from lakehouse_assets.run.domain import Domain, with_step_inputs
from lakehouse_assets.wire.code import declared_code, step_of
from tests.support.tables import numbers

TABLES = """
import dagster as dg
from dataclasses import replace
from lakehouse_assets import Table, column

columns = [column("day", "date"), column("n", "long")]
days = dg.DailyPartitionsDefinition("2024-01-01")

def made(name, step, **options):
    return Table(f"shop.{name}", columns, step, days, ["day"], **options)

orders = made("orders", "orders.sql")
again = replace(orders, identifier="shop.again")
deeper = made("deeper", "daily/deeper.sql")
elsewhere = made("elsewhere", "shop.other:elsewhere.sql")
"""
QUERY = "SELECT day, n FROM lake.shop.{} WHERE day >= :start_date AND day < :end_date"
FILES = {
    "shop/__init__.py": "",
    "shop/tables.py": TABLES,
    "shop/orders.sql": "-- The orders of a day,\n-- by number.\n" + QUERY.format("raw"),
    "shop/daily/deeper.sql": QUERY.format("orders"),
    "shop/other/__init__.py": "raise RuntimeError('imported')",
    "shop/other/elsewhere.sql": QUERY.format("orders JOIN lake.finance.rates USING (day, n)"),
}


@pytest.fixture(params=["a folder", "a zip", "a folder without __init__.py"])
def shop(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    files = dict(FILES)
    if request.param == "a folder without __init__.py":
        del files["shop/__init__.py"]
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    place = tmp_path
    if request.param == "a zip":
        place = tmp_path / "code.zip"
        with zipfile.ZipFile(place, "w") as archive:
            for path in files:
                archive.write(tmp_path / path, path)
    monkeypatch.setattr(sys, "path", [str(place), *sys.path])
    invalidate_caches()
    forget()
    yield tmp_path / "shop"
    forget()


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        del sys.modules[name]


def declared(name: str) -> Table:
    found: Table = getattr(import_module("shop.tables"), name)
    return found


def test_a_file_is_found_beside_the_declaration_and_in_other_packages(shop: Path) -> None:
    found = {name: declared(name).step for name in ("orders", "again", "deeper", "elsewhere")}
    assert found == {
        "orders": "shop:orders.sql",
        "again": "shop:orders.sql",
        "deeper": "shop:daily/deeper.sql",
        "elsewhere": "shop.other:elsewhere.sql",
    }
    step = step_of("shop:orders.sql")
    assert isinstance(step, SqlStep)
    assert step.description() == "The orders of a day,\nby number."
    assert (step.file, step.packages()) == ("shop/orders.sql", {"shop"})
    assert "shop.other" not in sys.modules


def test_tables_of_the_location_become_deps_and_others_reads(shop: Path) -> None:
    names = ("orders", "deeper", "elsewhere")
    (domain,) = with_step_inputs([Domain("shop", tables=[declared(name) for name in names])])
    inputs = {table.identifier: (table.dep_names, [*table.reads]) for table in domain.tables}
    assert inputs == {
        "shop.orders": ([], []),  # shop.raw is misspelled: the check of the location says so
        "shop.deeper": (["shop.orders"], []),
        "shop.elsewhere": (["shop.orders"], ["finance.rates"]),
    }


def test_declared_deps_keep_their_mapping(shop: Path) -> None:
    mapping = dg.AllPartitionMapping()
    deeper = replace(declared("deeper"), deps=[dg.AssetDep(["shop", "orders"], partition_mapping=mapping)])
    (domain,) = with_step_inputs([Domain("shop", tables=[declared("orders"), deeper])])
    (dep,) = domain.tables[1].deps
    assert dg.AssetDep.from_coercible(dep).partition_mapping == mapping


def test_a_location_refuses_a_query_with_all_its_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one_module.py").write_text("")
    (tmp_path / "x.sql").write_text("SELECT day, m FROM lake.demo.numbers WHERE day > :begin")
    (tmp_path / "y.sql").write_text("SELECT day, n, text FROM lake.demo.nubers WHERE day = :start_date")
    monkeypatch.syspath_prepend(str(tmp_path))
    read = [replace(numbers(identifier=f"demo.{name}"), step=f"one_module:{name}.sql") for name in "xy"]
    with pytest.raises(DeclarationError) as caught:
        code_location(Domain("demo", tables=[numbers(), *read]))
    assert str(caught.value).splitlines()[1:] == [
        "table 'demo.x': x.sql:1:50: there is no parameter :begin; it has :keys, :start, :end, :start_date, :end_date",
        "table 'demo.x': x.sql:1:13: the query's tables have no column m",
        "table 'demo.x': x.sql: its columns are not those of demo.x: missing n, text, unknown m",
        "table 'demo.y': y.sql:1:26: no table lake.demo.nubers is declared; similar ones: lake.demo.numbers",
    ]


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ("missing.sql", "there is no file missing.sql in"),
        ("../other.sql", "../other.sql leads out of tests.unit.extensions.sql: only its own files reach the workers"),
        ("nowhere:orders.sql", "there is no module nowhere"),
        ("orders.txt", "neither module:function nor a file that ends in .sql"),
    ],
)
def test_a_file_that_is_not_there_is_refused(step: str, problem: str) -> None:
    with pytest.raises(DeclarationError, match=problem.replace(".", r"\.")):
        replace(numbers(), step=step)


@pytest.mark.parametrize("content", [b"", b"SELECT 1 AS n;;", b"\xff\xfe", b"DROP TABLE t"])
def test_a_file_without_a_query_is_refused_if_it_has_none(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one_module.py").write_text("")
    (tmp_path / "x.sql").write_bytes(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    if b"SELECT" in content:
        assert declared_code("one_module:x.sql")
    else:
        with pytest.raises(ImportError, match=r"the code of one_module:x.sql can't be read"):
            declared_code("one_module:x.sql")


def test_a_mark_at_the_head_line_ends_and_links_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one_module.py").write_text("")
    (tmp_path / "x.sql").write_text("SELECT 'größe' AS n,\n 1 AS b\n")
    (tmp_path / "y.sql").write_bytes(b"\xef\xbb\xbf" + "SELECT 'größe' AS n,\r\n 1 AS b\r\n".encode())
    (tmp_path / "z.sql").symlink_to(tmp_path / "x.sql")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert len({declared_code(f"one_module:{name}.sql") for name in "xyz"}) == 1
