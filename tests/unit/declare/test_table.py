"""What a table's declaration refuses when the code location loads, and what its terms mean in Iceberg.
Whether partitions line up is in test_alignment.py; several tables together are in test_location.py."""

from __future__ import annotations

import ast
import copy
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform

from lakehouse_assets.declare.columns import Column, column
from lakehouse_assets.declare.modes import Append, Merge
from lakehouse_assets.declare.options import Arrivals, Level, Maintenance, Pace
from lakehouse_assets.declare.table import LONGEST_WORKER, Table
from lakehouse_assets.environment.sizes import Size
from lakehouse_assets.errors import DeclarationError
from lakehouse_assets.wire.code import worker_code

DAILY = dg.DailyPartitionsDefinition("2013-01-01")
COLUMNS = [
    column("day", "date", "local day", required=True),
    column("at", "timestamptz"),
    column("name", "string"),
    column("n", "int"),
]


def declare(**changes: Any) -> Table:
    working = {
        "identifier": "shop.orders",
        "columns": COLUMNS,
        "step": "tests.support.steps:numbers",
        "partitions": DAILY,
        "partitioned_by": ["day"],
    }
    return Table(**{**working, **changes})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"identifier": "orders"}, "'orders'"),
        ({"identifier": "Shop.Orders"}, "namespace.table"),
        ({"identifier": "shop.orders; drop"}, "namespace.table"),
        ({"identifier": "shop.temps.x"}, "namespace.table"),
        ({"columns": [], "partitioned_by": [], "partitions": None}, "no columns"),
        ({"columns": [*COLUMNS, Column("n", "long")]}, "declared twice: n"),
        ({"columns": [*COLUMNS, Column("N", "long")]}, "declared twice: n"),
        ({"columns": [*COLUMNS, Column("x", "int", was="n")]}, "has was='n', which is declared as well"),
        ({"columns": [*COLUMNS, Column("x", "int", was="x")]}, "has was='x', which is declared as well"),
        ({"columns": [*COLUMNS, Column("x", "int", was="p.x")]}, "expected the name of a whole column"),
        (
            {"columns": [*COLUMNS, Column("x", "int", was="old"), Column("y", "int", was="old")]},
            "several columns have was='old'",
        ),
        ({"allow_drop": ["old"]}, "allow_drop has no effect without"),
        ({"allow_drop": ["n"], "on_schema_change": "sync_all_columns"}, "allow_drop names n, which is declared"),
        ({"columns": [*COLUMNS, Column("arr delay", "int")]}, "letters, digits and _, found 'arr delay'"),
        ({"columns": [*COLUMNS, Column("a.b", "int")]}, "'a.b'"),
        ({"columns": [*COLUMNS, Column("x", "varchar")]}, "column 'x' has the type 'varchar'"),
        ({"columns": [*COLUMNS, Column("x", "bigint")]}, "'bigint' is not a type; did you mean long?"),
        ({"columns": [*COLUMNS, Column("x", "varchar(20)")]}, "'varchar(20)' is not a type; did you mean string?"),
        ({"columns": [*COLUMNS, Column("x", "array<int>")]}, "struct<name: type, …>; did you mean list<string>?"),
        ({"columns": [*COLUMNS, Column("x", "map<string, bigint>")]}, "did you mean long?"),
        ({"columns": [*COLUMNS, Column("_FILE", "string"), Column("_pos", "int")]}, "reserves: _FILE, _pos;"),
        ({"partitioned_by": ["months(day)"]}, "to a column of type date; the transforms are year, month, day, hour, "),
        ({"sorted_by": ["trunc(4, name)"]}, "transforms are year, month, day, hour, bucket, truncate"),
        ({"properties": {"write.format.default": "AVRO"}}, "write.format.default avro: its files can't be audited"),
        ({"columns": [*COLUMNS, Column("x", "decimal(50,2)")]}, "column 'x' has the type 'decimal(50,2)'"),
        (
            {"columns": [*COLUMNS, Column("x", "decimal(9,12)")]},
            "'decimal(9,12)' has more digits after the decimal point",
        ),
        ({"columns": [*COLUMNS, Column("x", "fixed[0]")]}, "'fixed[0]' must have at least one byte"),
        ({"columns": [*COLUMNS, Column("x", "timestamp_ns")]}, "column 'x' has the type 'timestamp_ns'"),
        ({"partitioned_by": "day"}, "partitioned_by is 'day', it must be a list"),
        ({"partitioned_by": ["date"]}, "partitioned_by names the column 'date', but the columns are day, at, name, n"),
        (
            {"partitioned_by": ["day", "bucket(16)"]},
            "'bucket(16)', which is not a partition or sort term such as flight_date",
        ),
        ({"partitioned_by": ["day", "bucket(name)"]}, "'bucket(name)', which is not a partition or sort term"),
        ({"partitioned_by": ["day", "bucket(0, name)"]}, "'bucket(0, name)', which is not a partition or sort term"),
        (
            {"partitioned_by": ["day", "week(at)"]},
            "'week(at)', which Iceberg can't apply to a column of type timestamptz",
        ),
        ({"partitioned_by": ["hour(day)"]}, "'hour(day)', which Iceberg can't apply to a column of type date"),
        ({"partitioned_by": ["month(day)", "day(day)"]}, "keep the finest"),
        ({"partitioned_by": ["day", "day"]}, "'day'"),
        ({"columns": [*COLUMNS, Column("at_day", "date")], "partitioned_by": ["day(at)"]}, "'at_day'"),
        ({"sorted_by": ["n desc"]}, "'n desc', which is not a partition or sort term"),
        ({"sorted_by": ["m"]}, "sorted_by names the column 'm'"),
        ({"sorted_by": ["truncate(3, at)"]}, "sorted_by has 'truncate(3, at)'"),
        ({"unique": ["id"]}, "unique names the column 'id'"),
        ({"unique": "name"}, "unique is 'name', it must be a list"),
        ({"partitions_per_worker": 0}, "partitions_per_worker is 0"),
        ({"owners": "team:a"}, "owners is 'team:a', it must be a list of the type Sequence[str]"),
        ({"kinds": "bronze"}, "kinds is 'bronze', it must be a list"),
        ({"deps": "nyc/flights"}, "deps is 'nyc/flights', it must be a list"),
        ({"allow_empty": "no"}, "allow_empty is 'no', it must be True or False"),
        ({"partitions_per_worker": 1.5}, "partitions_per_worker is 1.5, it must be a whole number"),
        ({"partitions_per_worker": "4"}, "partitions_per_worker is '4', it must be a whole number"),
        ({"checks": "n > 0"}, "checks is 'n > 0', it must be a dict"),
        (
            {"checks": {"positive": None}},
            "checks is {'positive': None}, it must be a dict of the type Mapping[str, str]",
        ),
        ({"checks": {"positive": "n >"}}, "the check 'positive' (n >) can't be evaluated: "),
        ({"checks": {"largest": "max(id) > 0"}}, "the check 'largest' (max(id) > 0) can't be evaluated: max() takes"),
        ({"checks": {"positive": "m > 0"}}, "it names the column 'm', but the table has day, at, name"),
        ({"checks": {"own": "tests.no_checks:own"}}, "the code of tests.no_checks:own can't be read"),
        ({"checks": {"own": "tests.support.steps:nowhere"}}, "tests.support.steps has no function 'nowhere'"),
        ({"columns": ["day"]}, "columns is ['day'], it must be a list of the type Sequence[Column]"),
        ({"columns": "day"}, "columns is 'day', it must be a list"),
        ({"unique": None}, "unique is None, it must be a list"),
        ({"properties": None}, "properties is None, it must be a dict"),
        ({"spark_conf": ["spark.driver.memory"]}, "spark_conf is ['spark.driver.memory'], it must be a dict"),
        ({"properties": {"format-version": "3"}}, "format-version 3"),
        ({"properties": {"write.distribution-mode": "foo"}}, "mode='foo', expected one of none, hash, range"),
        ({"properties": {"write.target-file-size-bytes": "64 MB"}}, "bytes='64 MB', it must be a whole number"),
        ({"properties": {"write.parquet.compression-codec": "nope"}}, "codec='nope', expected one of zstd, brotli"),
        ({"step": "tests.support.steps:nowhere"}, "no function 'nowhere'; it has"),
        ({"step": "tests.support.steps"}, "'tests.support.steps' is neither module:function nor a file"),
        ({"step": "tests.no_steps:numbers"}, "there is no module tests.no_steps"),
        ({"step": "no_package.steps:numbers"}, "there is no module no_package.steps"),
        ({"step": "os:system"}, "the code of os:system can't be read: there is no module os with source code"),
        ({"step": "time:sleep"}, "there is no module time with source code"),
        ({"step": ":numbers"}, "is neither module:function nor a file"),
        ({"partitioned_by": ["month(day)"]}, "don't line up with its Iceberg partitions (month(day))"),
        ({"partitioned_by": []}, "don't line up with its Iceberg partitions (none)"),
        ({"compute": "fargate"}, "compute='fargate' is unknown; expected one of inline, local, ecs, emr"),
        ({"size": (2, 8)}, "size is (2, 8), it must be of the type Size"),
        ({"size": Size("2", 8)}, "size.vcpus is '2', it must be a number"),  # type: ignore[arg-type]
        ({"size": Size(2, -8)}, "size has memory_gib=-8, it must be a number above 0"),
        ({"size": Size(float("inf"), 8)}, "size has vcpus=inf"),
        ({"size": Size(True, 8)}, "size.vcpus is True"),
        ({"size": Size(disk_gib=30.5)}, "size.disk_gib is 30.5, it must be a whole number"),  # type: ignore[arg-type]
        ({"size": Size(0.5, 1)}, "size has memory_gib=1, but a worker needs at least 2 GiB"),
        ({"worker_timeout": 30}, "worker_timeout is 30, it must be of the type timedelta"),
        ({"worker_timeout": timedelta(0)}, "worker_timeout is"),
        ({"worker_timeout": timedelta(days=8)}, "worker_timeout is 8 days, 0:00:00, it must be at most 7 days"),
        ({"maintenance": {"weight": 2}}, "maintenance is {'weight': 2}, it must be of the type Maintenance"),
        ({"maintenance": Maintenance(weight=0)}, "maintenance has weight=0, it must be a number above 0"),
        ({"maintenance": Maintenance(weight=float("nan"))}, "maintenance has weight=nan"),
        ({"maintenance": Maintenance(quiet_period=timedelta(-1))}, "maintenance has quiet_period="),
        (
            {"maintenance": Maintenance(quiet_period=15)},
            "maintenance.quiet_period is 15, it must be of the type timedelta",
        ),  # type: ignore[arg-type]
        ({"maintenance": Maintenance(without="sort")}, "maintenance.without is 'sort', it must be a list"),  # type: ignore[arg-type]
        (
            {"maintenance": Maintenance(without=["polish"])},
            "maintenance.without is ['polish'], it must be a list of the type Collection[Level]; expected one of frag",
        ),  # type: ignore[list-item]
        (
            {"retry_policy": 3},
            "retry_policy is 3, it must be of the type dg.RetryPolicy | None",
        ),
        ({"retry_policy": dg.RetryPolicy(max_retries=-1)}, "retry_policy has max_retries=-1, it must be 0 or more"),
        ({"retry_policy": dg.RetryPolicy(delay=-1)}, "retry_policy has delay=-1, it must be 0 or more seconds"),
        ({"retry_policy": dg.RetryPolicy(delay=float("nan"))}, "retry_policy has delay=nan"),
        ({"arrivals": Arrivals("{day}", Pace(floor=-1))}, "arrivals.pace has floor=-1"),
        ({"retry_policy": dg.RetryPolicy}, "retry_policy is "),
        ({"automation": "eager"}, "automation is 'eager'"),
        ({"partitions": "daily"}, "partitions is 'daily'"),
        ({"owners": [3]}, "owners is [3], it must be a list of the type Sequence[str]"),
        ({"owners": None}, "owners is None"),
        ({"kinds": [3]}, "kinds is [3]"),
        ({"deps": [3]}, "deps is [3]"),
        ({"deps": dg.AssetKey("landing")}, "deps is AssetKey"),
        ({"description": 3}, "description is 3"),
        ({"step": 3}, "step is 3, it must be of the type str"),
        ({"unique": 3}, "unique is 3"),
        ({"partitioned_by": [3]}, "partitioned_by is [3]"),
        ({"checks": {3: "n > 0"}}, "checks is {3: 'n > 0'}"),
        (
            {"spark_conf": {"spark.sql.shuffle.partitions": 3}},
            "spark_conf is {",
        ),
        ({"columns": [*COLUMNS, column("x", "int", required="no")]}, "columns.required is "),  # type: ignore[arg-type]
        ({"maintenance": Maintenance(zorder="n")}, "maintenance.zorder is 'n'"),
        ({"maintenance": Maintenance(managed="no")}, "maintenance.managed is "),  # type: ignore[arg-type]
        (
            {
                "columns": [*COLUMNS, column("a", "decimal(10, 2)"), column("b", "decimal(10, 2)")],
                "partitioned_by": ["a", "bucket(3, b)", "truncate(100, b)"],
            },
            "partitioned_by has two fields of the type decimal(10, 2)",
        ),
        ({"write_mode": Merge(keys=3)}, "write_mode.keys is 3"),  # type: ignore[arg-type]
        ({"write_mode": Append(dedup_on=True)}, "write_mode.dedup_on is "),  # type: ignore[arg-type]
        ({"write_mode": Pace()}, "write_mode is Pace("),
        ({"arrivals": Arrivals(3)}, "arrivals.pattern is 3"),  # type: ignore[arg-type]
        ({"arrivals": Arrivals("{day}", Pace(latency=60))}, "arrivals.pace.latency is "),  # type: ignore[arg-type]
    ],
)
def test_a_declaration_that_cannot_work_is_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        declare(**changes)
    assert expected in str(refused.value)
    assert repr(changes.get("identifier", "shop.orders")) in str(refused.value)


def test_every_type_that_an_option_takes_is_taken() -> None:
    key = dg.AssetKey(["nyc", "flights"])
    for deps in (
        [key],
        (dg.AssetDep(key, partition_mapping=dg.AllPartitionMapping()),),
        [["nyc", "flights"], "landing"],
    ):
        assert declare(deps=deps, retry_policy=dg.RetryPolicy(max_retries=3), automation=dg.AutomationCondition.eager())
    for kinds in ({"bronze"}, frozenset({"bronze"}), ["bronze"], ("bronze",)):
        assert declare(kinds=kinds, maintenance=Maintenance(weight=2, without={Level.SORT}, zorder=("n",)))
    assert declare(compute="local", on_schema_change="ignore", arrivals=Arrivals("{day}"))


def test_a_table_can_be_copied() -> None:
    assert copy.copy(declare()).identifier == replace(declare(), unique=["n"]).identifier


def test_the_workers_size_compute_and_timeout_are_optional() -> None:
    assert declare().size == Size()
    declare(compute="ecs", size=Size(0.25, 2, 21), worker_timeout=timedelta(minutes=30))
    declare(worker_timeout=LONGEST_WORKER)
    declare(compute="emr", size=Size(vcpus=4))


def test_how_a_table_is_maintained_is_optional_and_says_nothing_of_its_rows() -> None:
    changed = declare(maintenance=Maintenance(2.5, timedelta(0), [Level.SORT], managed=True))
    assert declare().maintenance == Maintenance()
    assert changed.code_version == declare().code_version


def test_a_step_module_with_a_syntax_error_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torn_steps.py").write_text("def numbers(spark, window:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DeclarationError, match=r"'shop\.orders'.*torn_steps.*can't be read"):
        declare(step="torn_steps:numbers")


def test_a_module_is_parsed_once_for_all_tables_that_have_their_steps_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"step_{n}" for n in range(4)]
    (tmp_path / "many_steps.py").write_text("\n".join(f"def {name}(spark, window): return {name!r}" for name in names))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("LAKEHOUSE_CACHE", str(tmp_path / "cache"))
    parsed, parse = list[str](), ast.parse

    def noted(source: str, *name: str) -> ast.AST:
        parsed.append(source)
        return parse(source, *name)

    monkeypatch.setattr(ast, "parse", noted)
    assert len({declare(step=f"many_steps:{name}").code_version for name in names}) == 4
    assert len([source for source in parsed if "def step_0" in source]) == 1


def test_declaring_imports_no_step() -> None:
    """Steps import pyspark, which the code location must load without."""
    import sys

    sys.modules.pop("tests.support.steps", None)
    declare()
    assert "tests.support.steps" not in sys.modules


def test_terms_are_icebergs() -> None:
    table = declare(
        partitioned_by=["day(at)", "bucket(16, name)", "truncate(3, n)", "day"],
        sorted_by=["name", "bucket(4, n)"],
        partitions=None,
    )
    fields = [(f.field_id, f.source_id, f.name, f.transform) for f in table.spec.fields]
    assert fields == [
        (1000, 2, "at_day", DayTransform()),
        (1001, 3, "name_bucket", BucketTransform(16)),
        (1002, 4, "n_trunc", TruncateTransform(3)),
        (1003, 1, "day", IdentityTransform()),
    ]
    assert [(f.source_id, str(f.transform)) for f in table.order.fields] == [(3, "identity"), (4, "bucket[4]")]
    assert declare().order.order_id == 0
    assert (declare().schema.find_field("day").required, declare().schema.find_field("day").doc) == (True, "local day")


def test_code_version_follows_the_step_and_the_declaration() -> None:
    version = declare().code_version
    assert declare().code_version == version
    assert declare(unique=["name"]).code_version != version
    assert declare(columns=COLUMNS[:2]).code_version != version
    assert declare(step="tests.support.steps:whole").code_version != version
    assert declare(checks={"positive": "n > 0"}).code_version != version
    assert declare(spark_conf={"spark.sql.ansi.enabled": "false"}).code_version != version
    assert declare(description="another", partitions_per_worker=7).code_version == version


def test_the_code_of_a_check_is_a_part_of_the_code_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    versions = set()
    for limit in (0, 1):
        (tmp_path / "own_checks.py").write_text(f"def positive():\n    return F.col('n') > {limit}\n")
        versions.add(declare(checks={"positive": "own_checks:positive"}).code_version)
        versions.add(worker_code("tests.support.steps:numbers", checks=["own_checks:positive"]))
    assert len(versions) == 4


def test_a_helper_with_a_syntax_error_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sound_steps.py").write_text("import torn_helper\ndef numbers(spark, window): ...\n")
    (tmp_path / "torn_helper.py").write_text("def help(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DeclarationError, match=r"'shop\.orders'.*sound_steps:numbers.*torn_helper, line 1"):
        declare(step="sound_steps:numbers")
