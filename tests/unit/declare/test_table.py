"""What a table's declaration refuses when the code location loads, and what its terms mean in Iceberg.
Whether partitions line up is in test_partitions.py."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform

from lakehouse_assets.declare.table import Column, Overwrite, Table, column, refuse_strangers, size_problems
from lakehouse_assets.errors import DeclarationError
from resources.settings import Compute, read_settings
from resources.sizes import Size
from tests.support.tables import numbers

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
    ("changes", "says"),
    [
        ({"identifier": "orders"}, "'orders'"),
        ({"identifier": "Shop.Orders"}, "namespace.table"),
        ({"identifier": "shop.orders; drop"}, "namespace.table"),
        ({"columns": [], "partitioned_by": [], "partitions": None}, "no columns"),
        ({"columns": [*COLUMNS, Column("n", "long")]}, "declared twice: n"),
        ({"columns": [*COLUMNS, Column("N", "long")]}, "declared twice: n"),
        ({"columns": [*COLUMNS, Column("arr delay", "int")]}, "'arr delay'"),
        ({"columns": [*COLUMNS, Column("a.b", "int")]}, "'a.b'"),
        ({"columns": [*COLUMNS, Column("x", "varchar")]}, "column 'x' has the type 'varchar'"),
        ({"columns": [*COLUMNS, Column("x", "decimal(50,2)")]}, "column 'x' has the type 'decimal(50,2)'"),
        ({"columns": [*COLUMNS, Column("x", "timestamp_ns")]}, "column 'x' has the type 'timestamp_ns'"),
        ({"partitioned_by": "day"}, "partitioned_by is a string, it must be a list such as ['day']"),
        ({"partitioned_by": ["date"]}, "partitioned_by names the column 'date', the schema has day, at, name, n"),
        ({"partitioned_by": ["day", "bucket(16)"]}, "'bucket(16)' is no partition or sort term such as flight_date"),
        ({"partitioned_by": ["day", "bucket(name)"]}, "'bucket(name)' is no partition or sort term"),
        ({"partitioned_by": ["day", "bucket(0, name)"]}, "'bucket(0, name)' is no partition or sort term"),
        (
            {"partitioned_by": ["day", "week(at)"]},
            "'week(at)', which Iceberg can't take of a column of type timestamptz",
        ),
        ({"partitioned_by": ["hour(day)"]}, "'hour(day)', which Iceberg can't take of a column of type date"),
        ({"partitioned_by": ["month(day)", "day(day)"]}, "keep the finest"),
        ({"partitioned_by": ["day", "day"]}, "'day'"),
        ({"columns": [*COLUMNS, Column("at_day", "date")], "partitioned_by": ["day(at)"]}, "'at_day'"),
        ({"sorted_by": ["n desc"]}, "'n desc' is no partition or sort term"),
        ({"sorted_by": ["m"]}, "sorted_by names the column 'm'"),
        ({"sorted_by": ["truncate(3, at)"]}, "sorted_by has 'truncate(3, at)'"),
        ({"unique": ["id"]}, "unique names the column 'id'"),
        ({"unique": "name"}, "unique is a string"),
        ({"partitions_per_worker": 0}, "partitions_per_worker is 0"),
        ({"properties": {"format-version": "3"}}, "format-version 3"),
        ({"step": "tests.support.steps:nowhere"}, "no function 'nowhere'; it has"),
        ({"step": "tests.support.steps"}, "no function ''"),
        ({"step": "tests.no_steps:numbers"}, "'tests.no_steps' can't be found"),
        ({"step": "no_package.steps:numbers"}, "'no_package.steps' can't be found"),
        ({"step": ":numbers"}, "can't be found"),
        ({"partitioned_by": ["month(day)"]}, "do not line up with its Iceberg partitions (month(day))"),
        ({"partitioned_by": []}, "do not line up with its Iceberg partitions (none)"),
        ({"compute": "fargate"}, "compute is 'fargate', known are inline, local, ecs, emr, emr_serverless"),
        ({"size": (2, 8)}, "size is (2, 8), it must be a Size such as Size(vcpus=2, memory_gib=8)"),
        ({"size": Size("2", 8)}, "size has vcpus='2', it must be a number above 0"),  # type: ignore[arg-type]
        ({"size": Size(2, -8)}, "size has memory_gib=-8, it must be a number above 0"),
        ({"size": Size(float("inf"), 8)}, "size has vcpus=inf"),
        ({"size": Size(True, 8)}, "size has vcpus=True"),
        ({"size": Size(disk_gib=30.5)}, "size has disk_gib=30.5, it must be a whole number above 0"),  # type: ignore[arg-type]
        ({"size": Size(0.5, 1)}, "size has memory_gib=1, a worker needs 2 GiB"),
        ({"worker_timeout": 30}, "worker_timeout is 30, it must be a timedelta above 0"),
        ({"worker_timeout": timedelta(0)}, "worker_timeout is"),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        declare(**changes)
    assert says in str(refused.value)
    assert repr(changes.get("identifier", "shop.orders")) in str(refused.value)


def test_what_its_workers_get_may_be_left_open_or_said() -> None:
    assert declare().size == Size()
    declare(compute=Compute.ECS, size=Size(0.25, 2, 21), worker_timeout=timedelta(minutes=30))
    declare(compute="emr", size=Size(vcpus=4))  # as a Compute is spelled in the environment


ON_ECS = {
    "LAKEHOUSE_STAGING": "s3://lake/staging",
    "LAKEHOUSE_ECS_CLUSTER": "data",
    "LAKEHOUSE_ECS_TASK_DEFINITION": "lakehouse-worker:7",
    "LAKEHOUSE_ECS_SUBNETS": "subnet-0a1b",
}


@pytest.mark.parametrize(
    ("size", "environment", "says"),
    [
        (Size(3, 8), {}, "3 vCPUs; Fargate gives 0.25, 0.5, 1"),
        (Size(2, 64), {}, "64 GiB with 2 vCPUs; Fargate gives 4 to 16 by 1"),
        (Size(vcpus=2), {}, "vCPUs and memory go together"),
        (Size(vcpus=2), {"LAKEHOUSE_ECS_VCPUS": "1", "LAKEHOUSE_ECS_MEMORY_GIB": "8"}, None),
        (Size(vcpus=4), {"LAKEHOUSE_ECS_VCPUS": "1", "LAKEHOUSE_ECS_MEMORY_GIB": "4"}, "4 GiB with 4 vCPUs"),
        (Size(disk_gib=500), {}, "500 GiB of disk"),
        (Size(3, 8), {"LAKEHOUSE_ECS_CAPACITY": "instances"}, None),
        (Size(), {}, None),
    ],
)
def test_a_size_that_fargate_has_not_is_told_with_the_tables_name(
    size: Size, environment: dict[str, str], says: str | None
) -> None:
    table = declare(compute=Compute.ECS, size=size)
    told = size_problems([table], read_settings(ON_ECS | environment, also={Compute.ECS: ["shop.orders"]}))
    assert len(told) == (says is not None)
    assert says is None or (says in told[0] and "'shop.orders'" in told[0])


def test_so_is_one_of_a_table_that_runs_where_the_environment_says() -> None:
    settings = read_settings(ON_ECS | {"LAKEHOUSE_COMPUTE": "ecs"})
    assert len(size_problems([declare(size=Size(3, 8))], settings)) == 1
    assert size_problems([declare(size=Size(3, 8), compute=Compute.EMR)], settings) == []


def test_so_is_one_that_emr_or_emr_serverless_has_not() -> None:
    """The type of a disk is the environment's to choose, or the table's."""
    disk, own = (f"spark.emr-serverless.{who}.disk.type" for who in ("driver", "executor"))
    settings = read_settings({f"LAKEHOUSE_SPARK__{disk.replace('.', '__')}": "shuffle_optimized"})
    large = declare(compute="emr_serverless", size=Size(4, 16, 500))
    told = size_problems([large, declare(compute=Compute.EMR, size=Size(disk_gib=50))], settings)
    assert [problem.partition(";")[0] for problem in told] == [
        "table 'shop.orders': its size: 500 GiB of disk",
        "table 'shop.orders': its size: 50 GiB of disk",
    ]
    assert size_problems([replace(large, spark_conf={own: "shuffle_optimized"})], settings) == []
    assert size_problems([declare(size=Size(3, 7, 5))], settings) == []


def test_a_step_module_that_is_no_python_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torn_steps.py").write_text("def numbers(spark, window:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DeclarationError, match=r"'shop\.orders'.*torn_steps.*can't be read"):
        declare(step="torn_steps:numbers")


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
    assert declare(spark_conf={"spark.sql.ansi.enabled": "false"}).code_version != version
    assert declare(description="another", partitions_per_worker=7).code_version == version


def test_another_write_mode_is_another_code_version() -> None:
    @dataclass(frozen=True)
    class Add(Overwrite):
        """A mode to come."""

    assert declare(write_mode=Add()).code_version != declare().code_version


def test_a_helper_that_is_no_python_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sound_steps.py").write_text("import torn_helper\ndef numbers(spark, window): ...\n")
    (tmp_path / "torn_helper.py").write_text("def help(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DeclarationError, match=r"'shop\.orders'.*sound_steps:numbers imports.*torn_helper, line 1"):
        declare(step="sound_steps:numbers")


def test_deps_that_no_asset_has_are_refused_with_what_is_near() -> None:
    table = numbers(deps=[dg.AssetKey(["nyc", "fligths"])])
    with pytest.raises(DeclarationError, match=r"table 'demo.numbers': deps has 'nyc/fligths'.* near it: nyc/flights"):
        refuse_strangers([table], {table.key, dg.AssetKey(["nyc", "flights"])})
    refuse_strangers([replace(table, deps=[table.key])], {table.key})


def test_two_tables_of_one_identifier_are_refused() -> None:
    with pytest.raises(DeclarationError, match=r"table 'demo.numbers': declared twice"):
        refuse_strangers([numbers(), numbers()], {numbers().key})
