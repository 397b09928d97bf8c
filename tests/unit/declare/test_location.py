"""What does not fit between the tables of a code location, and sizes that no worker can have.
What one declaration by itself can get wrong is in test_table.py."""

from __future__ import annotations

from dataclasses import replace

import dagster as dg
import pytest

from lakehouse_assets.declare.location import declaration_problems, dependency_problems, size_problems
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.environment.sizes import Size
from lakehouse_assets.errors import DeclarationError
from tests.support.tables import numbers, whole

ON_EMR = {
    "LAKEHOUSE_STAGING": "s3://lake/staging",
    "LAKEHOUSE_CODE": "s3://lake/code",
    "LAKEHOUSE_EMR_CLUSTER": "j-2AX",
    "LAKEHOUSE_EMR_SERVERLESS_APPLICATION": "00f1",
    "LAKEHOUSE_EMR_SERVERLESS_ROLE": "arn:aws:iam::123456789012:role/x",
    "LAKEHOUSE_EMR_EKS_VIRTUAL_CLUSTER": "9wvd1yhms5tk1k8chrn525z34",
    "LAKEHOUSE_EMR_EKS_ROLE": "arn:aws:iam::123456789012:role/x",
    "LAKEHOUSE_EMR_EKS_RELEASE": "emr-7.9.0-latest",
}
ON_ECS = {
    "LAKEHOUSE_STAGING": "s3://lake/staging",
    "LAKEHOUSE_ECS_CLUSTER": "data",
    "LAKEHOUSE_ECS_TASK_DEFINITION": "lakehouse-worker:7",
    "LAKEHOUSE_ECS_SUBNETS": "subnet-0a1b",
}


@pytest.mark.parametrize(
    ("size", "environment", "expected"),
    [
        (Size(3, 8), {}, "3 vCPUs; Fargate offers 0.25, 0.5, 1"),
        (Size(2, 64), {}, "64 GiB with 2 vCPUs; Fargate offers 4 to 16 by 1"),
        (Size(vcpus=2), {}, "vCPUs and memory must be set together"),
        (Size(vcpus=2), {"LAKEHOUSE_ECS_VCPUS": "1", "LAKEHOUSE_ECS_MEMORY_GIB": "8"}, None),
        (Size(vcpus=4), {"LAKEHOUSE_ECS_VCPUS": "1", "LAKEHOUSE_ECS_MEMORY_GIB": "4"}, "4 GiB with 4 vCPUs"),
        (Size(disk_gib=500), {}, "500 GiB of disk"),
        (Size(3, 8), {"LAKEHOUSE_ECS_CAPACITY": "instances"}, None),
        (Size(), {}, None),
    ],
)
def test_a_size_that_fargate_does_not_have_is_a_problem_with_the_tables_name(
    size: Size, environment: dict[str, str], expected: str | None
) -> None:
    table = numbers(compute="ecs", size=size)
    problems = size_problems([table], read_settings(ON_ECS | environment, also={"ecs": ["demo.numbers"]}))
    assert len(problems) == (expected is not None)
    assert expected is None or (expected in problems[0] and "'demo.numbers'" in problems[0])


def test_so_is_one_of_a_table_without_a_compute_of_its_own() -> None:
    settings = read_settings(ON_ECS | ON_EMR | {"LAKEHOUSE_COMPUTE": "ecs"}, also={"emr": ["demo.numbers"]})
    assert len(size_problems([numbers(size=Size(3, 8))], settings)) == 1
    assert size_problems([numbers(size=Size(3, 8), compute="emr")], settings) == []


def test_so_is_one_that_what_emr_runs_on_does_not_have() -> None:
    """The type of a disk is the environment's to choose, or the table's."""
    disk, own = (f"spark.emr-serverless.{who}.disk.type" for who in ("driver", "executor"))
    optimized = {f"LAKEHOUSE_SPARK__{disk.replace('.', '__')}": "shuffle_optimized"}
    settings = read_settings(
        ON_EMR | optimized, also=dict.fromkeys(("emr", "emr_serverless", "emr_eks"), ("demo.numbers",))
    )
    large = numbers(compute="emr_serverless", size=Size(4, 16, 500))
    others = [numbers(compute="emr", size=Size(disk_gib=50)), numbers(compute="emr_eks", size=Size(0.5, 4))]
    problems = size_problems([large, *others], settings)
    assert [problem.partition(";")[0] for problem in problems] == [
        "table 'demo.numbers': its size: 500 GiB of disk",
        "table 'demo.numbers': its size: 50 GiB of disk",
        "table 'demo.numbers': its size: 0.5 vCPUs",
    ]
    assert size_problems([replace(large, spark_conf={own: "shuffle_optimized"})], settings) == []
    assert size_problems([numbers(size=Size(3, 7, 5))], settings) == []


def test_every_dep_that_no_asset_has_is_a_problem_with_similar_names() -> None:
    table = numbers(deps=[dg.AssetKey(["nyc", "fligths"]), dg.AssetKey(["demo", "numbers"]), dg.AssetKey("planets")])
    first, second = declaration_problems([table], {table.key, dg.AssetKey(["nyc", "flights"])})
    lacks = "but this code location has no such asset"
    assert first.startswith(f"""table 'demo.numbers': deps names AssetKey(["nyc", "fligths"]), {lacks}""")
    assert first.endswith('; similar ones: AssetKey(["nyc", "flights"])')
    every = 'AssetKey(["demo", "numbers"]), AssetKey(["nyc", "flights"])'
    assert second.endswith(f'deps names AssetKey(["planets"]), {lacks}; all: {every}')


def test_a_slash_in_a_dep_is_a_problem_with_the_key_that_was_meant() -> None:
    (problem,) = declaration_problems([numbers(deps=["nyc/flights"])], {dg.AssetKey(["nyc", "flights"])})
    assert 'deps names AssetKey(["nyc/flights"])' in problem
    assert problem.endswith('AssetKey(["nyc", "flights"])')


MONTHS = dg.MonthlyPartitionsDefinition("2024-01-01")
SHOPS = dg.StaticPartitionsDefinition(["a", "b"])


def _two(
    upstream: dg.PartitionsDefinition | None, downstream: dg.PartitionsDefinition | None, dep: object
) -> dg.Definitions:
    @dg.asset(name="sales", key_prefix="demo", partitions_def=upstream)
    def sales() -> None: ...

    @dg.asset(name="report", key_prefix="demo", partitions_def=downstream, deps=[dep])  # type: ignore[list-item]
    def report() -> None: ...

    return dg.Definitions([sales, report])


SALES = dg.AssetKey(["demo", "sales"])
SAME_SHOPS = dg.AssetDep(SALES, partition_mapping=dg.StaticPartitionMapping({"a": "a", "c": "b"}))

SHOPS_TO_NONE = dg.AssetDep(SALES, partition_mapping=dg.StaticPartitionMapping({"a": "a"}))

BOTH = dg.MultiPartitionsDefinition({"month": MONTHS, "shop": SHOPS})
OTHER_SHOPS = dg.AssetDep(
    SALES,
    partition_mapping=dg.MultiPartitionMapping(
        {"shop": dg.DimensionPartitionMapping("shop", dg.StaticPartitionMapping({"a": "a", "c": "b"}))}
    ),
)


@pytest.mark.parametrize(
    ("upstream", "downstream", "dep", "expected"),
    [
        (
            MONTHS,
            SHOPS,
            SALES,
            '(StaticPartitionsDefinition) do not match those of its dep AssetKey(["demo", "sales"]) (',
        ),
        (SHOPS, MONTHS, SALES, "dg.LastPartitionMapping() if it reads the last"),
        (
            MONTHS,
            dg.MonthlyPartitionsDefinition("2024-01-01", timezone="Asia/Tokyo"),
            SALES,
            "in Asia/Tokyo) do not match",
        ),
        (SHOPS, None, SHOPS_TO_NONE, "dg.SpecificPartitionsPartitionMapping([…]) if it reads only these"),
        (SHOPS, SHOPS, SAME_SHOPS, "dg.StaticPartitionMapping({…}) if"),
        (dg.MonthlyPartitionsDefinition("2024-01-01", timezone="Asia/Tokyo"), BOTH, SALES, "do not match"),
        (BOTH, BOTH, OTHER_SHOPS, "(MultiPartitionsDefinition) do not match those of its dep"),
    ],
)
def test_a_dep_whose_partitions_do_not_fit_is_a_problem_with_mappings_that_would(
    upstream: dg.PartitionsDefinition, downstream: dg.PartitionsDefinition | None, dep: object, expected: str
) -> None:
    (problem,) = dependency_problems(_two(upstream, downstream, dep))
    assert problem.startswith("asset 'demo/report': its partitions (")
    assert expected in problem
    some = dg.SpecificPartitionsPartitionMapping(upstream.get_partition_keys()[:1])
    for fits in (dg.AllPartitionMapping(), dg.LastPartitionMapping(), some):
        assert dependency_problems(_two(upstream, downstream, dg.AssetDep(SALES, partition_mapping=fits))) == []


@pytest.mark.parametrize(
    ("upstream", "downstream"),
    [
        (None, MONTHS),
        (MONTHS, None),
        (dg.DailyPartitionsDefinition("2024-01-01"), MONTHS),
        (SHOPS, SHOPS),
        (MONTHS, BOTH),
        (BOTH, SHOPS),
        (BOTH, BOTH),
    ],
)
def test_deps_whose_partitions_fit_are_none(
    upstream: dg.PartitionsDefinition | None, downstream: dg.PartitionsDefinition | None
) -> None:
    assert dependency_problems(_two(upstream, downstream, SALES)) == []


@pytest.mark.parametrize(
    ("mapping", "requested"),
    [(dg.StaticPartitionMapping({"a": "a"}), 0), (dg.SpecificPartitionsPartitionMapping(["a"]), 1)],
    ids=["static", "specific"],
)
def test_by_a_static_mapping_dagster_updates_no_asset_without_partitions(
    mapping: dg.PartitionMapping, requested: int
) -> None:
    """Why it is refused there, though Dagster loads and runs it: the asset depends on no partition then."""
    defs = _two(SHOPS, None, dg.AssetDep(SALES, partition_mapping=mapping))
    eager = defs.map_asset_specs(
        func=lambda spec: spec.replace_attributes(automation_condition=dg.AutomationCondition.eager())
    )
    with dg.DagsterInstance.ephemeral() as instance:
        before = dg.evaluate_automation_conditions(eager, instance)
        dg.materialize([eager.get_assets_def(SALES)], instance=instance, partition_key="a")
        after = dg.evaluate_automation_conditions(eager, instance, cursor=before.cursor)
    assert after.get_num_requested(dg.AssetKey(["demo", "report"])) == requested


def test_an_identifier_of_several_tables_is_a_problem() -> None:
    assert declaration_problems([numbers(), whole()], set()) == []
    problems = declaration_problems([numbers(), whole(), numbers(), whole(), numbers()], set())
    assert [problem.partition(";")[0] for problem in problems] == [
        "table 'demo.numbers': declared 3 times",
        "table 'demo.whole': declared 2 times",
    ]


def test_an_error_lists_all_problems() -> None:
    assert str(DeclarationError("table 'a.b': wrong")) == "table 'a.b': wrong"
    both = DeclarationError("table 'a.b': wrong", "table 'c.d': wrong too")
    assert str(both).splitlines() == ["the declarations are not valid:", "table 'a.b': wrong", "table 'c.d': wrong too"]
