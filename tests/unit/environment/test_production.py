"""The production files as far as they can be judged without a server: Dagster's and AWS's own schemas, our settings.
Servers are in integration/test_production_instance.py, the image's build in integration/test_dockerfile.py."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import botocore.session
import pytest
from botocore import xform_name
from dagster._core.code_pointer import ModuleCodePointer
from dagster._core.instance import InstanceRef
from dagster._core.instance.config import dagster_instance_config
from dagster._core.origin import JobPythonOrigin, RepositoryPythonOrigin
from dagster._core.remote_origin import (
    CodeLocationOrigin,
    GrpcServerCodeLocationOrigin,
    ManagedGrpcPythonEnvCodeLocationOrigin,
)
from dagster._core.workspace.load_target import WorkspaceFileTarget
from dagster._grpc.types import ExecuteRunArgs, ResumeRunArgs
from dagster_aws.ecs.container_context import EcsContainerContext
from dagster_cloud_cli.config.models import Location, load_dagster_cloud_yaml

from lakehouse_assets.cli.home import INSTANCE
from lakehouse_assets.environment.catalog import catalog_problems, catalog_properties
from lakehouse_assets.environment.catalog_in_spark import spark_catalogs, translate
from lakehouse_assets.environment.env_reader import public
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.environment.sizes import Size, fargate_problem
from tests.support.dockerfile import DockerfileError, Ignored, Instruction, parse
from tests.support.fakes.emr_service import FakeEmr
from tests.support.production import STOP_TIMEOUT, validated
from tests.support.recorded_calls import read_calls

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
OPERATE = ROOT / "docs" / "operate.md"
AWS = ROOT / "docs" / "aws.md"
# https://docs.aws.amazon.com/AmazonECS/latest/APIReference/API_RunTask.html (overrides)
RUN_TASK_OVERRIDES = 8192
# https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonelasticmapreduce.html and
# https://docs.aws.amazon.com/emr/latest/ManagementGuide/emr-auto-termination-policy.html
BESIDE_RUN_JOB_FLOW = ("AddTags", "PutAutoTerminationPolicy")


@pytest.fixture
def location() -> Location:
    (location,) = load_dagster_cloud_yaml((ROOT / "dagster_cloud.yaml").read_text()).locations
    return location


@pytest.fixture
def environment(location: Location) -> Mapping[str, str]:
    """What a run under Dagster+ is given, with a value in the secret's place."""
    context = EcsContainerContext.create_from_config(location.container_context)
    return {**context.get_environment_dict(), **{secret["name"]: "id:secret" for secret in context.secrets}}


def test_dagster_plus_takes_the_location_and_its_build(location: Location) -> None:
    assert location.code_source
    assert location.code_source.module_name == "lakehouse_assets.definitions"
    assert location.build
    assert location.build.directory
    assert (ROOT / location.build.directory / "Dockerfile").is_file()
    assert location.build.registry


def test_its_environment_passes_our_own_checks(environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = read_settings(check=catalog_problems)
    assert settings.compute == "ecs"
    assert settings.computes["ecs"].capacity == {"FARGATE_SPOT": 3, "FARGATE": 1}
    assert spark_catalogs(catalog_properties(settings), live=True)["spark.sql.catalog.lake.type"] == "rest"


def test_its_plain_variables_hold_no_secret(location: Location) -> None:
    plain = EcsContainerContext.create_from_config(location.container_context).get_environment_dict()
    assert public(plain) == plain


def test_its_sizes_are_ones_fargate_has(location: Location) -> None:
    context = EcsContainerContext.create_from_config(location.container_context)
    for resources in (context.server_resources, context.run_resources):
        size = Size(int(resources["cpu"]) / 1024, int(resources["memory"]) / 1024, resources.get("ephemeral_storage"))
        assert fargate_problem(size) is None


def test_the_instance_is_valid_and_keeps_what_the_embedded_one_promises() -> None:
    config, _ = dagster_instance_config(str(DEPLOY))
    embedded, _ = dagster_instance_config(str(INSTANCE.parent))
    assert config["concurrency"]["pools"]["granularity"] == embedded["concurrency"]["pools"]["granularity"]
    slots = "free_slots_after_run_end_seconds"
    assert config["run_monitoring"][slots] == embedded["run_monitoring"][slots]
    assert config["run_retries"] == {"enabled": True, "max_retries": 2, "retry_on_asset_or_op_failure": False}
    assert not config["telemetry"]["enabled"]
    assert not config["nux"]["enabled"]


def test_a_run_that_ends_its_workers_is_given_up_only_when_its_container_is_gone() -> None:
    (stop,) = re.findall(r"`stopTimeout: (\d+)`", AWS.read_text())
    assert int(stop) == STOP_TIMEOUT
    monitoring = dagster_instance_config(str(DEPLOY))[0]["run_monitoring"]
    assert monitoring["cancel_timeout_seconds"] >= STOP_TIMEOUT + monitoring["poll_interval_seconds"]


@pytest.mark.parametrize(
    ("catalog", "kind"),
    [("Glue", "glue"), ("REST with OAuth2", "rest"), ("S3 Tables", "rest"), ("Glue's REST endpoint", "rest")],
)
def test_the_catalogs_of_the_docs_are_ones_the_location_takes(
    catalog: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (row,) = re.findall(rf"^\| {re.escape(catalog)} \| (`TYPE=.*) \|$", OPERATE.read_text(), re.MULTILINE)
    for name, value in re.findall(r"`(\w+)=([^`]+)`", row):
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)
    assert read_settings(check=catalog_problems)
    properties = catalog_properties(read_settings())
    assert properties["type"] == kind
    java, _ = translate(properties)
    signs = properties.get("rest.sigv4-enabled")
    assert java.get("rest.auth.type") == ("sigv4" if signs else "oauth2" if kind == "rest" else None)


def test_the_docs_ask_for_the_rights_to_emr_that_the_stack_does_not_give() -> None:
    """The fake has the operations that are called, and no others."""
    model = botocore.session.get_session().get_service_model("emr")
    called = {name for name in model.operation_names if hasattr(FakeEmr, xform_name(name))}
    given = {call.action for call in read_calls("calls.json")}
    needed = {f"elasticmapreduce:{action}" for action in called | {*BESIDE_RUN_JOB_FLOW}} - given | {"iam:PassRole"}
    (row,) = re.findall(r"^\| runs, if `LAKEHOUSE_EMR_CLUSTER` .* \| (.*) \|$", AWS.read_text(), re.MULTILINE)
    found, service = set(), ""
    for named, action in re.findall(r"`(?:([\w-]+):)?([A-Z]\w+)`", row):
        service = named or service
        found.add(f"{service}:{action}")
    assert found == needed


def test_the_definitions_are_valid_in_the_environment_of_dagster_plus(
    environment: Mapping[str, str], tmp_path: Path
) -> None:
    done = validated(environment, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("file", "origin"),
    [
        ("workspace.yaml", ManagedGrpcPythonEnvCodeLocationOrigin),
        ("deploy/workspace.yaml", GrpcServerCodeLocationOrigin),
    ],
)
def test_both_workspaces_name_the_one_location(
    file: str, origin: type[CodeLocationOrigin], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEHOUSE_CODE_SERVER_HOST", "code.lakehouse.internal")
    (found,) = WorkspaceFileTarget([str(ROOT / file)]).create_origins()
    assert isinstance(found, origin)
    assert found.location_name == "lakehouse_assets"


@pytest.mark.parametrize("args", [ExecuteRunArgs, ResumeRunArgs])
def test_a_runs_command_with_the_whole_instance_in_it_fits_into_an_ecs_override(args: type[ExecuteRunArgs]) -> None:
    """Dagster writes the instance's configuration into the command of every run's task."""
    pointer = ModuleCodePointer("lakehouse_assets.definitions", "defs", "/opt/lakehouse")
    repository = RepositoryPythonOrigin("/opt/lakehouse/venv/bin/python", pointer, None, ["dagster"], None)
    ref = InstanceRef.from_dir(str(DEPLOY))
    found = args(
        job_origin=JobPythonOrigin("__ASSET_JOB", repository), run_id="0" * 36, instance_ref=ref
    )  # set_exit_code_on_failure stays unset, as EcsRunLauncher leaves it
    overrides = {
        "containerOverrides": [{"name": "run", "command": found.get_command_args(), "cpu": 1024, "memory": 4096}],
        "cpu": "1024",
        "memory": "4096",
    }
    assert len(json.dumps(overrides)) < RUN_TASK_OVERRIDES


def test_the_image_ends_as_nobody_in_particular_with_the_location_as_its_command() -> None:
    *_, last = parse((ROOT / "Dockerfile").read_text())
    texts = {i.keyword: i.text for i in last.instructions}
    assert [i.keyword for i in last.instructions].index("USER") > max(
        n for n, i in enumerate(last.instructions) if i.keyword in ("RUN", "COPY")
    )
    assert texts["USER"].split(":") == ["10001", "10001"]
    assert json.loads(texts["CMD"])[-1] == "lakehouse_assets.definitions"
    tools = ("uv ", "pip ", "apt-get")
    assert not [i.text for i in last.instructions if i.keyword == "RUN" and any(tool in i.text for tool in tools)]


def test_what_changes_daily_comes_behind_what_takes_minutes() -> None:
    *_, last = parse((ROOT / "Dockerfile").read_text())
    texts = [f"{i.keyword} {i.text}" for i in last.instructions]
    setup = next(n for n, text in enumerate(texts) if "lakehouse_assets.cli setup" in text)
    whole = texts.index("COPY lakehouse_assets lakehouse_assets")
    before = [text for text in texts[:setup] if text.startswith("COPY")]
    assert setup < whole
    assert not [text for text in before if "nyc" in text or "deploy" in text]


@pytest.mark.parametrize(
    ("path", "ignored"),
    [
        ("lakehouse_assets/domains/nyc/tables.py", False),
        ("lakehouse_assets/domains/nyc/__pycache__/tables.cpython-311.pyc", True),
        ("lakehouse_assets/environment/jvm/bin/java", False),
        ("uv.lock", False),
        ("deploy/dagster.yaml", False),
        ("dagster.yaml", True),  # a checkout's own instance: Dagster would take it for the image's
        (".git/HEAD", True),
        (".venv/bin/python", True),
        (".lakehouse/catalog.db", True),
        ("tests/conftest.py", True),
    ],
)
def test_the_context_is_what_the_image_is_made_of(path: str, ignored: bool) -> None:
    assert Ignored((ROOT / ".dockerignore").read_text())(path) is ignored


def test_the_reader_joins_lines_and_takes_flags_apart() -> None:
    text = "# one\nFROM a AS b\nRUN --mount=type=cache,target=/c one \\\n  # said within\n  && two\nFROM b\nUSER 1:1\n"
    first, second = parse(text)
    assert (first.base, first.name, second.base) == ("a", "b", "b")
    assert first.instructions == (Instruction(3, "RUN", {"mount": "type=cache,target=/c"}, "one && two"),)


@pytest.mark.parametrize(
    "text", ["FROM a\nADD x y", "FROM a\nCOPY --chown=1:1 x y", "RUN x", "FROM a\nRUN x \\", "FROM --platform=x a"]
)
def test_the_reader_refuses_what_it_does_not_know(text: str) -> None:
    with pytest.raises(DockerfileError, match="line"):
        parse(text)
