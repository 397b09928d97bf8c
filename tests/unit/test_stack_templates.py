"""Rules that the templates of deploy/stacks/ keep, beside CloudFormation's own (cfn-lint).
Whether their policies are right is test_role_policies.py's; whether they can be made, test_stacks.py's."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster._core.instance.config import dagster_instance_config

from lakehouse_assets.environment.settings import unknown_names
from lakehouse_assets.environment.sizes import SERVERLESS, Size
from lakehouse_assets.extensions.aws.job_runs import OVERHEAD_FACTOR, sized
from lakehouse_assets.extensions.aws.prices import EMR_SERVERLESS
from scripts.deploy import ORDER, STACKS, NotDeployed, environment, parameters
from scripts.deploy_values import CLOUD, cloud, exports, kept
from tests.conftest import ROOT
from tests.support.pages import section

# What people choose; all else has a default, or is an output of a stack before it.
OF_PEOPLE = {"Image", "Email"}
# Resources that hold what nothing else knows.
STATEFUL = {
    "AWS::S3::Bucket",
    "AWS::SQS::Queue",
    "AWS::RDS::DBInstance",
    "AWS::SecretsManager::Secret",
    "AWS::Logs::LogGroup",
    "AWS::S3Tables::TableBucket",
}
# Actions without resources of their own, by the Service Authorization Reference.
ON_ANYTHING = {
    *("ecs:DescribeTaskDefinition", "ecs:ListTasks", "ecr:GetAuthorizationToken", "logs:DescribeLogGroups"),
    "ec2:DescribeNetworkInterfaces",
    *(f"ssmmessages:{verb}{kind}Channel" for verb in ("Create", "Open") for kind in ("Control", "Data")),
}

# What a job gets whose Spark settings say nothing: cores and GiB of heap of each worker, and executors at first.
# https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/jobs-spark.html (spark-defaults)
UNASKED_CORES, UNASKED_HEAP, UNASKED_EXECUTORS = 4, 14, 3


class _Whole(yaml.SafeLoader):
    """Reads a template with CloudFormation's own tags as one-item mappings, as JSON has them."""


def _tagged(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> Any:
    name = suffix if suffix in ("Ref", "Condition") else f"Fn::{suffix}"
    match node:
        case yaml.ScalarNode():
            return {name: loader.construct_scalar(node)}
        case yaml.SequenceNode():
            return {name: loader.construct_sequence(node, deep=True)}
        case _:
            return {name: loader.construct_mapping(node, deep=True)}


_Whole.add_multi_constructor("!", _tagged)


def template(stack: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.load((STACKS / f"{stack}.yaml").read_text(), _Whole)
    return read


def resources(stack: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """By name, those in loops as well."""
    for name, resource in template(stack)["Resources"].items():
        yield from resource[2].items() if name.startswith("Fn::ForEach") else [(name, resource)]


def statements(stack: str) -> Iterator[dict[str, Any]]:
    """Of the policies that roles have."""
    for _, resource in resources(stack):
        if resource["Type"] == "AWS::IAM::Role":
            for policy in resource["Properties"]["Policies"]:
                yield from policy["PolicyDocument"]["Statement"]
        elif resource["Type"] == "AWS::IAM::Policy":
            yield from resource["Properties"]["PolicyDocument"]["Statement"]


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def test_cloudformation_s_own_linter_finds_nothing() -> None:
    templates = [STACKS / f"{stack}.yaml" for stack in ORDER]
    done = subprocess.run([Path(sys.executable).with_name("cfn-lint"), *templates], capture_output=True, text=True)
    assert done.stdout + done.stderr == ""


@pytest.mark.parametrize("stack", ORDER)
def test_what_holds_state_outlives_its_stack_and_its_replacement(stack: str) -> None:
    kept = {name: r for name, r in resources(stack) if r["Type"] in STATEFUL}
    assert {n for n, r in kept.items() if r.get("DeletionPolicy") != "RetainExceptOnCreate"} == set()
    assert {n for n, r in kept.items() if r.get("UpdateReplacePolicy") != "Retain"} == set()


def test_each_parameter_has_a_default_or_comes_from_a_stack_before_or_from_a_person() -> None:
    before: set[str] = set()
    for stack in ORDER:
        read = template(stack)
        wanted = {name for name, about in read["Parameters"].items() if "Default" not in about}
        assert wanted - before <= OF_PEOPLE, stack
        assert all(about["Description"] for about in read["Parameters"].values())
        before |= set(read["Outputs"])


def test_no_policy_allows_all_actions_or_passes_any_role() -> None:
    for statement in statements("roles"):
        assert [action for action in listed(statement["Action"]) if "*" in action] == []
        if "*" in listed(statement["Resource"]):
            assert set(listed(statement["Action"])) <= ON_ANYTHING
        if "iam:PassRole" in listed(statement["Action"]):
            assert "iam:PassedToService" in statement["Condition"]["StringEquals"]


def test_each_role_is_taken_by_one_service_of_this_account_alone() -> None:
    roles = [r["Properties"] for _, r in resources("roles") if r["Type"] == "AWS::IAM::Role"]
    for role in roles:
        (trust,) = role["AssumeRolePolicyDocument"]["Statement"]
        assert set(trust["Principal"]) == {"Service"}
        assert trust["Condition"] == {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}}


def test_secrets_are_given_by_their_arns_alone() -> None:
    for stack in ORDER:
        text = (STACKS / f"{stack}.yaml").read_text()
        assert re.findall(r"(?i)^  \w*(?:password|credential|token)\w*:\n    Type: String", text, re.MULTILINE) == []


def test_the_variables_that_outputs_are_for_exist() -> None:
    made = {output: "x" for stack in ORDER for output in template(stack)["Outputs"]}
    named = environment(made)
    assert unknown_names(named) == []
    outputs = [o for stack in ORDER for o in template(stack).get("Metadata", {}).get("Environment", {}).values()]
    assert set(outputs) <= made.keys()


def names_of(variables: list[dict[str, Any]]) -> set[str]:
    """The names of a container's variables, of those under a condition as well."""
    return {variable.get("Fn::If", [None, variable])[1]["Name"] for variable in variables}


def container() -> Mapping[str, Any]:
    (task,) = [r for _, r in resources("dagster") if r["Type"] == "AWS::ECS::TaskDefinition"]
    (found,) = task["Properties"]["ContainerDefinitions"]
    return found


def test_the_services_have_all_that_the_stacks_and_the_instance_name() -> None:
    found = names_of([*container()["Environment"], *container()["Secrets"]])
    given = {v for stack in ORDER for v in template(stack).get("Metadata", {}).get("Environment", {})}
    assert given <= found
    instance = (STACKS.parent / "dagster.yaml").read_text()
    assert set(re.findall(r"env: (\w+)", instance)) <= found
    assert dagster_instance_config(str(STACKS.parent))


# Workers of EMR Serverless that are kept ready. That a size is asked for as it is kept is test_emr_serverless.py's.

COMPUTE = template("compute")
WARM = {"EmrServerless": "true", "EmrImage": "x", "EmrWarmDrivers": "2", "EmrWarmExecutors": "6"}


def value(node: Any, given: Mapping[str, str]) -> Any:
    """A part of compute.yaml as CloudFormation sees it; None for what is left out. given: parameters."""
    chosen = {**{name: str(about.get("Default", "")) for name, about in COMPUTE["Parameters"].items()}, **given}
    match node:
        case {"Ref": "AWS::NoValue"}:
            return None
        case {"Ref": name}:
            return chosen[name]
        case {"Condition": name}:
            return value(COMPUTE["Conditions"][name], given)
        case {"Fn::Sub": text}:
            return re.sub(r"\$\{(\w+)\}", lambda found: chosen[found[1]], text)
        case {"Fn::If": [name, one, other]}:
            return value(one if value({"Condition": name}, given) else other, given)
        case {"Fn::Equals": [one, other]}:
            return value(one, given) == value(other, given)
        case {"Fn::Not": [one]}:
            return not value(one, given)
        case {"Fn::And": all_of}:
            return all(value(one, given) for one in all_of)
        case {"Fn::Or": any_of}:
            return any(value(one, given) for one in any_of)
        case {}:
            return {name: value(one, given) for name, one in node.items()}
        case [*_]:
            return [value(one, given) for one in node]
        case _:
            return node


def refusals(**given: str) -> str:
    """What the rules of compute.yaml say about parameters."""
    rules = [rule for rule in COMPUTE["Rules"].values() if value(rule["RuleCondition"], given)]
    assertions = [assertion for rule in rules for assertion in rule["Assertions"]]
    return "; ".join(a["AssertDescription"] for a in assertions if not value(a["Assert"], given))


def application(part: str, given: Mapping[str, str]) -> Any:
    return value(COMPUTE["Resources"]["Application"]["Properties"][part], given)


def test_no_workers_are_kept_ready_unless_asked_for() -> None:
    off = {"EmrServerless": "true", "EmrImage": "x"}
    assert refusals(**off) == ""
    assert application("InitialCapacity", off) is None
    assert application("AutoStopConfiguration", off) == {"Enabled": True, "IdleTimeoutMinutes": "15"}


def test_drivers_and_executors_that_are_kept_ready_have_one_size() -> None:
    given = WARM | {"EmrWarmVcpus": "2", "EmrWarmMemoryGib": "8", "EmrIdleMinutes": "60"}
    size = {"Cpu": "2 vCPU", "Memory": "8 GB"}
    assert refusals(**given) == ""
    assert application("InitialCapacity", given) == [
        {"Key": "Driver", "Value": {"WorkerCount": "2", "WorkerConfiguration": size}},
        {"Key": "Executor", "Value": {"WorkerCount": "6", "WorkerConfiguration": size}},
    ]
    assert application("AutoStopConfiguration", given) == {"Enabled": True, "IdleTimeoutMinutes": "60"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"EmrWarmDrivers": "0"}, "give both"),
        ({"EmrWarmExecutors": "0"}, "give both"),
        ({"EmrServerless": "false"}, "EmrServerless=true"),
    ],
)
def test_workers_that_no_job_could_use_are_refused(change: dict[str, str], says: str) -> None:
    assert refusals(**WARM) == ""
    assert says in refusals(**WARM | change)


def test_the_sizes_that_can_be_kept_ready_are_those_of_tables() -> None:
    of = COMPUTE["Parameters"]
    memories = [gib for fitting in SERVERLESS.values() for gib in fitting]
    assert of["EmrWarmVcpus"]["AllowedValues"] == [*SERVERLESS]
    assert (of["EmrWarmMemoryGib"]["MinValue"], of["EmrWarmMemoryGib"]["MaxValue"]) == (min(memories), max(memories))


def test_a_job_of_a_table_without_a_size_asks_for_workers_like_those_kept_ready_by_default() -> None:
    of = COMPUTE["Parameters"]
    assert sized(Size()) == {}
    assert of["EmrWarmVcpus"]["Default"] == UNASKED_CORES
    assert of["EmrWarmMemoryGib"]["Default"] == math.ceil(UNASKED_HEAP * (1 + OVERHEAD_FACTOR))


def test_the_docs_tell_what_it_costs_to_keep_workers_ready() -> None:
    of = COMPUTE["Parameters"]
    text = section(ROOT / "docs" / "aws.md", "Workers that are ready")
    assert {name for name in of if name.startswith("EmrWarm")} | {"EmrIdleMinutes"} <= set(re.findall(r"Emr\w+", text))
    hour = EMR_SERVERLESS.usd(of["EmrWarmVcpus"]["Default"], of["EmrWarmMemoryGib"]["Default"])
    job = (1 + UNASKED_EXECUTORS) * hour
    for usd in (hour, job, job * of["EmrIdleMinutes"]["Default"] / 60):
        assert f"{usd:.2f} USD" in text
    assert f"{EMR_SERVERLESS.vcpu} USD" in text
    assert f"{EMR_SERVERLESS.gib} USD" in text


def test_parameters_that_the_template_does_not_have_are_named() -> None:
    with pytest.raises(NotDeployed, match=r"Nmae.*NoncurrentDays"):
        parameters("lake", "lakehouse", {"Nmae": "x"}, [], {})


def test_the_name_is_not_given_beside_that_of_the_stacks() -> None:
    with pytest.raises(NotDeployed, match="NAME="):
        parameters("lake", "lakehouse", {"Name": "other"}, [], {})


def test_parameters_that_nobody_gives_are_named_with_what_they_are() -> None:
    with pytest.raises(NotDeployed, match=r"Image \(The image by its digest"):
        parameters("compute", "lakehouse", {}, [], {})


def test_a_parameter_stays_as_it_was_unless_somebody_or_another_stack_says_otherwise() -> None:
    found = parameters("lake", "ours", {"LogDays": "7"}, ["LogDays", "NoncurrentDays", "Queue"], {"Queue": "arn"})
    assert {p["ParameterKey"]: p.get("ParameterValue") for p in found} == {
        "Name": "ours",
        "LogDays": "7",
        "NoncurrentDays": None,
        "Queue": "arn",
    }


def test_exports_are_read_by_a_shell_as_they_were_meant() -> None:
    lines = exports({"A": "it's $HOME", "B": "plain"})
    done = subprocess.run(["sh", "-c", f'{lines}\nprintf "%s|%s" "$A" "$B"'], capture_output=True, text=True)
    assert done.stdout == "it's $HOME|plain"


def test_dagster_cloud_yaml_takes_what_the_stacks_give_and_keeps_all_else() -> None:
    made = {
        "Image": "registry/lakehouse-assets@sha256:0",
        "Staging": "s3://ours/staging",
        "CatalogType": "glue",
        "Warehouse": "s3://ours/warehouse",
        "RunRole": "arn:aws:iam::1:role/run",
        "ExecutionRole": "arn:aws:iam::1:role/execution",
    }
    before = yaml.safe_load(CLOUD.read_text())["locations"][0]
    after = yaml.safe_load(cloud(CLOUD.read_text(), made, "eu-west-1"))["locations"][0]
    ecs = after["container_context"]["ecs"]
    assert "LAKEHOUSE_STAGING=s3://ours/staging" in ecs["env_vars"]
    assert "LAKEHOUSE_COMPUTE=ecs" in ecs["env_vars"]
    assert "AWS_REGION=eu-west-1" in ecs["env_vars"]
    assert [v for v in ecs["env_vars"] if "CATALOG__LAKE__URI" in v] == []
    assert ecs["secrets"] == []
    assert ecs["task_role_arn"] == made["RunRole"]
    assert "build" not in after
    assert after["image"] == made["Image"]
    assert ecs["run_resources"] == before["container_context"]["ecs"]["run_resources"]


def test_what_no_stack_gives_stays_in_dagster_cloud_yaml_and_is_named() -> None:
    content, made = CLOUD.read_text(), {"RunRole": "arn:run", "ExecutionRole": "arn:execution", "Cluster": "ours"}
    (before, after) = (
        yaml.safe_load(text)["locations"][0]["container_context"]["ecs"]
        for text in (content, cloud(content, made, "eu-central-1"))
    )
    assert [v for v in after["env_vars"] if v.startswith("PYICEBERG_")] == [
        v for v in before["env_vars"] if v.startswith("PYICEBERG_")
    ]
    assert after["secrets"] == before["secrets"]
    assert {"LAKEHOUSE_ECS_SUBNETS", "LAKEHOUSE_STAGING", "PYICEBERG_CATALOG__LAKE__URI"} <= {*kept(content, made)}
    assert "LAKEHOUSE_ECS_CLUSTER" not in kept(content, made)


def test_dagster_cloud_yaml_is_left_alone_where_there_are_no_roles_yet() -> None:
    with pytest.raises(NotDeployed, match="roles"):
        cloud(CLOUD.read_text(), {"Staging": "s3://ours/staging"}, "eu-west-1")
