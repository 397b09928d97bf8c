"""The stacks of deploy/stacks/, really made by `make deploy`'s code on an emulator that asks their policies, and used
as each role uses them. What is called is recorded in deploy/proof/calls.json, by which the policies are proved."""

from __future__ import annotations

import json
import os
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import dagster as dg
import pytest
from dagster._core.launcher import LaunchRunContext, WorkerStatus

from lakehouse_assets import code_location
from lakehouse_assets.cli.doctor import diagnose
from lakehouse_assets.declare.options import Level
from lakehouse_assets.domains.nyc import tables
from lakehouse_assets.domains.nyc.domain import DOMAIN as NYC
from lakehouse_assets.domains.nyc.landing import deliver, into_bucket
from lakehouse_assets.environment.catalog import catalog_properties
from lakehouse_assets.environment.env_reader import public
from lakehouse_assets.environment.settings import Settings, read_settings
from lakehouse_assets.extensions.aws.job_runs import ship
from lakehouse_assets.extensions.queue.source import sqs_client
from lakehouse_assets.maintenance.collect.trash import RETENTION
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.storage import objects
from resources.reports import reports_at_home
from scripts.deploy import ORDER, NotDeployed, deploy, environment
from tests.conftest import Lake, failure_text
from tests.support.driven import runs, tiny_site
from tests.support.fakes.ecs_rules import ACCOUNT, MEMORY_BY_CPU
from tests.support.fakes.emr import EmrSite
from tests.support.production import STOP_TIMEOUT, RunTasks, created, surroundings, validated
from tests.support.proxy import proxy
from tests.support.recorded_calls import assert_recorded
from tests.support.servers import ACCESS_KEY, REGION, SeaweedFS
from tests.support.stacks import IMAGE, NAME, UNKNOWN, Stacks, stacks, tasks
from tests.support.trash import Shelf

pytestmark = [
    pytest.mark.server,
    pytest.mark.spark,
    pytest.mark.long("Makes the stacks and works on them as each role; test_role_policies.py holds what was recorded."),
]

FLIGHTS = replace(tables.flights, partitions_per_worker=2)
ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DAYS = ("2013-03-09", "2013-03-10", "2013-03-11")


@pytest.fixture(scope="module")
def made() -> Iterator[Stacks]:
    with stacks() as found:
        yield found


@pytest.fixture
def tasks_of(made: Stacks, tmp_path: Path) -> Iterator[dict[str, str]]:
    """ECS, whose tasks run; the environment of those who ask it for tasks."""
    with tasks(made, tmp_path / "ecs") as variables:
        yield variables


@contextmanager
def acting(made: Stacks, role: str, variables: dict[str, str], home: Path) -> Iterator[Lakehouse]:
    """This process is one of the role's: clients that it has from before have other keys."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boto3, "DEFAULT_SESSION", None)
        objects._client.cache_clear()
        sqs_client.cache_clear()
        for name, value in {**variables, **made.keys(role), "LAKEHOUSE_HOME": str(home)}.items():
            patch.setenv(name, value)
        yield Lakehouse(read_settings())


@contextmanager
def heard(made: Stacks, *roles: str) -> Iterator[None]:
    """What this process asks of the services that its environment names is recorded as these roles'."""
    made.recorder.roles[ACCESS_KEY] = roles
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name in ("ECS", "CLOUDWATCH_LOGS", "EMR_SERVERLESS", "EMR", "EMR_CONTAINERS"):
            if url := os.environ.get(f"AWS_ENDPOINT_URL_{name}"):
                patch.setenv(f"AWS_ENDPOINT_URL_{name}", stack.enter_context(proxy(url, heard=made.recorder.hear)).uri)
        yield


@contextmanager
def unheard(made: Stacks) -> Iterator[None]:
    """What this process asks with its keys is not recorded: the doctor tries what nobody needs."""
    key = os.environ["AWS_ACCESS_KEY_ID"]
    roles = made.recorder.roles.pop(key)
    yield
    made.recorder.roles[key] = roles


def arrive(made: Stacks, *days: str) -> None:
    """Flights of these days come to the drop zone."""
    put = into_bucket(made.client("s3"), f"s3://{made.outputs['Bucket']}/landing/nyc")
    wanted = tuple(f"flights/{day}" for day in days)
    deliver(lambda name, content: any(part in name for part in wanted) and put(name, content))


def location() -> dg.Definitions:
    """The code location as this process's environment makes it."""
    return code_location(NYC, resources={"reports": reports_at_home()})


def executed(job: str, config: dict[str, object], instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    defs = location()
    return defs.resolve_job_def(job).execute_in_process(config, instance=instance)


@pytest.mark.parametrize("stack", [stack for stack in ORDER if stack not in UNKNOWN])
def test_a_stack_that_is_as_its_template_says_stays_as_it_is(made: Stacks, stack: str) -> None:
    """What it gives itself is not taken for what a person or another stack has given."""
    asked: list[str] = []
    deploy(made.cloudformation, stack, NAME, {}, lambda changes: bool(asked.append(changes)))
    assert asked == []


def test_a_change_that_fails_says_which_resource_and_why(made: Stacks) -> None:
    with pytest.raises(NotDeployed, match=r"^second-lake failed: Bucket: .*arn:aws:sqs.*nobody"):
        nobody = f"arn:aws:sqs:{REGION}:{ACCOUNT}:nobody"
        deploy(made.cloudformation, "lake", "second", {"Queue": nobody}, lambda changes: True)


def container(made: Stacks, family: str) -> dict[str, Any]:
    """The one container of the definition that a stack registered."""
    registered = made.client("ecs").describe_task_definition(taskDefinition=family)["taskDefinition"]
    assert int(registered["memory"]) in MEMORY_BY_CPU[int(registered["cpu"])]
    (found,) = registered["containerDefinitions"]
    return dict(found)


def test_the_code_location_is_valid_in_the_environment_of_runs(made: Stacks, tmp_path: Path) -> None:
    variables = {v["name"]: v["value"] for v in container(made, "lakehouse-run")["environment"]}
    assert public(variables) == variables
    done = validated(variables | {"DAGSTER_POSTGRES_PASSWORD": "secret"}, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert variables["LAKEHOUSE_MAINTENANCE_ROLE"] == made.outputs["MaintenanceRole"]
    assert environment(made.outputs).items() <= variables.items()


@pytest.mark.parametrize("family", ["worker", "run", "code", "daemon", "webserver"])
def test_containers_are_of_one_image_and_keep_what_it_says(made: Stacks, family: str) -> None:
    found = container(made, f"lakehouse-{family}")
    assert found["name"] == family
    assert found["image"] == IMAGE
    # The image's entry point forwards signals and reaps processes: no other, and no initProcessEnabled.
    assert not {"entryPoint", "user", "linuxParameters"} & found.keys()
    assert found.get("stopTimeout") == (None if family == "worker" else STOP_TIMEOUT)
    options = found["logConfiguration"]["options"]
    assert (options["awslogs-group"], options["awslogs-stream-prefix"]) == ("/lakehouse", family)


def test_an_arrival_reaches_the_table_by_the_queue(
    made: Stacks, tasks_of: dict[str, str], tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """As the code location asks for a run, and the run fills the partition by a worker."""
    arrive(made, DAYS[0])
    with acting(made, "code", tasks_of, tmp_path) as lakehouse:
        defs = location()
        sensor = defs.resolve_sensor_def("queue")
        context = dg.build_sensor_context(instance, definitions=defs, resources={"lakehouse": lakehouse})
        (request,) = sensor.evaluate_tick(context).run_requests or ()
    assert request.partition_key == DAYS[0]
    with acting(made, "run", tasks_of, tmp_path):
        result = (
            location()
            .resolve_implicit_global_asset_job_def()
            .execute_in_process(
                instance=instance,
                tags=dict(request.tags),
                asset_selection=list(request.asset_selection or ()),
                partition_key=request.partition_key,
                raise_on_error=False,
            )
        )
        assert result.success, failure_text(result)
        assert Lake(read_settings(), instance).rows(tables.flights).num_rows > 0


def test_a_range_is_filled_by_bounded_tasks_and_lands_in_one_commit(
    made: Stacks, tasks_of: dict[str, str], tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    arrive(made, *DAYS)
    with acting(made, "run", tasks_of, tmp_path):
        lake = Lake(read_settings(), instance)
        before = lake.snapshots(FLIGHTS)
        result = lake.run(FLIGHTS, DAYS[0], DAYS[-1])
        assert result.success, failure_text(result)
        assert lake.snapshots(FLIGHTS) == before + 1


def test_the_doctor_finds_all_that_a_run_needs_and_names_what_another_role_lacks(
    made: Stacks, tasks_of: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del tasks_of["DAGSTER_POSTGRES_HOST"]  # the emulator starts no database
    with acting(made, "run", tasks_of, tmp_path) as lakehouse, unheard(made):
        status, told = diagnose(lakehouse.settings, [FLIGHTS.identifier]), capsys.readouterr().out
        assert (status, [line for line in told.splitlines()[2:] if not line.endswith("  ok")]) == (0, [])
        assert "start tasks of lakehouse-worker" in told
    with acting(made, "worker", tasks_of, tmp_path) as lakehouse, unheard(made):
        status, told = diagnose(lakehouse.settings, [FLIGHTS.identifier]), capsys.readouterr().out
    assert status == 1
    (staging,) = [line for line in told.splitlines() if "/staging" in line]
    assert "s3:PutObject, GetObject and DeleteObject" in staging
    (catalog,) = [line for line in told.splitlines() if "ask the catalog" in line]
    assert "glue:GetTable" in catalog


def test_sensors_look_at_the_tables(
    made: Stacks, tasks_of: dict[str, str], tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    with acting(made, "code", tasks_of, tmp_path) as lakehouse:
        defs = location()
        for name in ("lakehouse_health", "lakehouse_maintenance_due"):
            context = dg.build_sensor_context(instance, definitions=defs, resources={"lakehouse": lakehouse})
            assert defs.resolve_sensor_def(name).evaluate_tick(context).cursor


def test_dead_letters_are_sent_again(
    made: Stacks, tasks_of: dict[str, str], tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    sqs = made.client("sqs")
    sqs.send_message(QueueUrl=made.outputs["QueueUrl"], MessageBody='{"table": "nyc.nothing", "partitions": ["x"]}')
    sqs.send_message(QueueUrl=made.outputs["DeadLettersUrl"], MessageBody='{"table": "nyc.planes"}')
    with acting(made, "code", tasks_of, tmp_path) as lakehouse:
        defs = location()
        context = dg.build_sensor_context(instance, definitions=defs, resources={"lakehouse": lakehouse})
        defs.resolve_sensor_def("queue").evaluate_tick(context)
    with acting(made, "run", tasks_of, tmp_path):
        result = executed("lakehouse_redrive", {"dry_run": False}, instance)
        assert result.success


def test_maintenance_compacts_expires_collects_and_restores(
    made: Stacks, tasks_of: dict[str, str], tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    with acting(made, "maintenance", tasks_of, tmp_path):
        config = {"dry_run": False, "force": True, "patient": False, "levels": [level.value for level in Level]}
        assert executed("lakehouse_maintenance", {**config, "tables": [FLIGHTS.identifier]}, instance).success
        settings = read_settings()
        shelf = Shelf(catalog_properties(settings), settings.staging, f"{catalog_properties(settings)['warehouse']}/t")
        for name in ("data/a", "data/b"):
            key = f"warehouse/t/{name}"
            made.client("s3").put_object(Bucket=made.outputs["Bucket"], Key=key, Body=b"nobody needs this")
        assert shelf.put().files == 2
        assert shelf.restore().restored == 2
        assert shelf.put().files == 2
        after = datetime.now(UTC) + 2 * RETENTION
        assert shelf.purge(int(after.timestamp() * 1000)).files == 2
        assert executed("lakehouse_take_over", {"table": FLIGHTS.identifier}, instance).success


@pytest.mark.parametrize("compute", ["ecs", "emr", "emr_serverless", "emr_eks"])
def test_workers_are_found_stopped_and_their_logs_read(
    compute: str, made: Stacks, weed: SeaweedFS, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """On a site of its own, whose S3 is not the lake's: only what the service is asked is recorded. Runs that fill
    tables and runs that maintain them drive workers in the same way."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with (
        tiny_site(compute, weed, tmp_path) as site,
        pytest.MonkeyPatch.context() as patch,
        heard(made, "run", "maintenance"),
        runs(tmp_path / "home", instance) as run,
    ):
        if isinstance(site, EmrSite):  # a role is for one cluster, by its id: no others are looked for
            patch.setenv("LAKEHOUSE_EMR_CLUSTER", next(iter(site.emr.clusters)))
        run.drive("complain")
        run.record_unconfirmed(2)
        run.hold()
        with pytest.raises(KeyboardInterrupt):
            run.drive("attend", look=run.once(interrupt))


@pytest.mark.parametrize("role", ["run", "maintenance"])
def test_code_is_sent_for_emr(role: str, made: Stacks, tasks_of: dict[str, str], tmp_path: Path) -> None:
    with acting(made, role, tasks_of, tmp_path) as lakehouse:
        # A place of its own: what is there already is not sent again.
        ship(lakehouse.s3(), f"{made.outputs['Code']}/{role}", "lakehouse_assets.worker", ())


def test_runs_are_launched_watched_and_terminated(
    made: Stacks, weed: SeaweedFS, settings: Settings, tmp_path: Path
) -> None:
    """By the daemon and by the webserver, with the instance of deploy/dagster.yaml."""
    ec2 = made.client("ec2")
    subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
    interface = ec2.create_network_interface(SubnetId=subnet)["NetworkInterface"]["NetworkInterfaceId"]
    launched = RunTasks(tmp_path / "tasks", ["sleep", "600"], interface)
    with surroundings(weed, launched) as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.setenv("DAGSTER_HOME", str(DEPLOY))
        patch.setenv("PATH", f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}")
        patch.setenv("AWS_ENDPOINT_URL_S3", made.url)
        patch.setenv("AWS_ENDPOINT_URL_EC2", made.url)
        patch.setenv("DAGSTER_LOGS_BUCKET", made.outputs["Bucket"])
        settings.home.mkdir()
        own_role = {"ecs/task_overrides": json.dumps({"taskRoleArn": made.outputs["MaintenanceRole"]})}
        with acting(made, "code", {}, settings.home), heard(made, "code"), dg.DagsterInstance.get() as instance:
            launcher, made_runs = instance.run_launcher, []
            for day in DAYS:
                run = created(instance, "tests.support.tiny_location", "numbers", [day], own_role if made_runs else {})
                launcher.launch_run(LaunchRunContext(dagster_run=run, workspace=None))
                made_runs.append(run)
            first, second, third = made_runs
            next(iter(launched.started.values())).kill()
            assert launcher.check_run_worker_health(first).status is WorkerStatus.FAILED
            assert launcher.check_run_worker_health(second).status is WorkerStatus.RUNNING
            assert launcher.terminate(second.run_id)
        for role in ("run", "maintenance", "code"):
            with (
                acting(made, role, {}, settings.home),
                dg.DagsterInstance.get() as instance,
                instance.compute_log_manager.capture_logs([third.run_id, "compute_logs", role]),
            ):
                print("said by a step", flush=True)
        with (
            acting(made, "webserver", {}, settings.home),
            heard(made, "webserver"),
            dg.DagsterInstance.get() as instance,
        ):
            log = instance.compute_log_manager.get_log_data([third.run_id, "compute_logs", "run"])
            assert "said by a step" in (log.stdout or b"").decode()
            assert instance.run_launcher.terminate(third.run_id)


def test_the_calls_are_those_that_the_policies_are_proved_by(made: Stacks) -> None:
    """Behind all others of this file: what they recorded."""
    assert_recorded("calls.json", made.recorder.calls)
