"""`lakehouse doctor`: probes what a run needs, harmlessly: some calls must fail after permissions were checked."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import click
from pyiceberg.exceptions import NoSuchTableError

from lakehouse_assets.cli.home import make_writable, used_by_command
from lakehouse_assets.cli.project import enter_project, project_of
from lakehouse_assets.environment.aws import bucket_and_key, client, error_code, s3_client
from lakehouse_assets.environment.catalog import catalog_problems, catalog_properties, load_lake
from lakehouse_assets.environment.computes import ComputeSettings
from lakehouse_assets.environment.machine import JAVA_MINIMUM, command, java_home
from lakehouse_assets.environment.output import redacted
from lakehouse_assets.environment.settings import QueueSettings, Settings, read_settings
from lakehouse_assets.environment.spark_setup import jars
from lakehouse_assets.extensions.aws.computes import Ecs, Emr, EmrEks, EmrServerless
from lakehouse_assets.extensions.fork_server.folders import WORKERS, alive
from lakehouse_assets.maintenance.health.findings import size_text
from lakehouse_assets.storage.objects import objects_at
from lakehouse_assets.storage.place import place_of

DENIED = ("AccessDenied", "Unauthorized", "Forbidden", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch")
# A name that nothing has: the answer tells whether the request was allowed.
NOBODY = "lakehouse-doctor"
# S3 checks permissions before the checksum, and keeps no object with a wrong one.
WRONG_CHECKSUM = "1B2M2Y8AsgTpgAmY7PhCfg=="
# SQS checks permissions before it refuses this character.
UNSENDABLE = "\x01"
# The last possible revision of a family, which none has.
NO_REVISION = 2_147_483_647
# Bytes. A choice: Spark spills to disk, and fails late on a full one.
LEAST_FREE = 2**30


@dataclass(frozen=True)
class Probe:
    """Something that runs need."""

    what: str
    """Such as ``read s3://lake/landing``."""
    needs: str
    """The missing permission or connection, if it fails."""
    attempt: Callable[[], Any]
    expected: tuple[str, ...] = ()
    """Codes of errors that only an allowed call gets: they count as success."""


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
def doctor(tables: tuple[str, ...]) -> int:
    """Try what runs need, harmlessly, and name what is missing.

    The catalog is asked for each TABLE, such as shop.orders. Exits with 1 if something is missing.
    """
    if project_of(Path.cwd()):  # in an image there may be none
        enter_project()
    return diagnose(used_by_command(read_settings(check=catalog_problems)), tables)


def diagnose(settings: Settings, tables: Sequence[str]) -> int:
    """Prints all outcomes. Returns 0 if nothing is missing, else 1.

    tables: to look up; they need not exist. Without any, it lists namespaces.
    """
    from lakehouse_assets.cli.terminal import table

    rows = [(redacted(probe.what), redacted(outcome(probe))) for probe in probes(settings, tables)]
    print(table(("needed", "found"), rows))
    if running := alive(settings.home / WORKERS):
        size = size_text(sum(one.resident_bytes() for one in running))
        stay = "1 local worker stays" if len(running) == 1 else f"{len(running)} local workers stay"
        print(f"\n{stay}, with {size} of memory; `{command('workers')}` lists them")
    missing = [what for what, found in rows if found != "ok"]
    if missing:
        print(f"\n{len(missing)} of {len(rows)} are missing", file=sys.stderr)
    return 1 if missing else 0


def outcome(probe: Probe) -> str:
    """Returns ``ok``, or what is missing."""
    try:
        probe.attempt()
    except Exception as error:
        if "botocore" in sys.modules:  # else nothing raises its errors
            from botocore.exceptions import BotoCoreError, ClientError

            if isinstance(error, ClientError):
                if (code := error_code(error)) in probe.expected:
                    return "ok"
                denied = any(text in code for text in DENIED)
                return f"denied, {probe.needs}" if denied else f"{code}: {error.response['Error'].get('Message', '')}"
            if isinstance(error, BotoCoreError):
                return f"not reached, {probe.needs}: {error}"
        # Another library's error, in one line; it may quote the service's code.
        text = " ".join(str(error).split())
        return f"denied, {probe.needs}" if any(code in text for code in DENIED) else text or type(error).__name__
    return "ok"


def probes(settings: Settings, tables: Sequence[str]) -> Iterator[Probe]:
    """Yields what runs need."""
    if not all(compute.remote for compute in settings.computes.values()):
        yield from _of_machine(settings)
    for identifier in tables:
        yield _of_catalog(settings, identifier)
    if not tables:
        yield _of_catalog(settings)
    yield from _storage(settings)
    for compute in settings.computes.values():
        yield from _of_compute(compute)
    if settings.queue:
        yield from _of_queue(settings.queue)
    if host := os.environ.get("DAGSTER_POSTGRES_HOST"):
        yield from _of_dagster(host)


def _of_machine(settings: Settings) -> Iterator[Probe]:
    yield Probe(f"Java {JAVA_MINIMUM} or later", "", java_home)
    yield Probe("Spark's jars", "", partial(jars, settings))

    def have_room() -> None:
        if (free := shutil.disk_usage(settings.home).free) < LEAST_FREE:
            raise OSError(f"only {size_text(free)} are free; make room, or point LAKEHOUSE_HOME to another disk")

    yield Probe(f"write below {settings.home}", "", partial(make_writable, settings.home, settings))
    yield Probe(f"{size_text(LEAST_FREE)} of free disk there", "", have_room)


def _of_catalog(settings: Settings, identifier: str | None = None) -> Probe:
    properties = catalog_properties(settings)
    asked = properties.get("uri", properties.get("type", "lake"))
    needs = "see the variables PYICEBERG_CATALOG__LAKE__*"
    if properties.get("type") == "glue":
        needs = "the role needs glue:GetTable on the catalog, the database and the table"

    def load() -> None:
        lake = load_lake(settings)
        if identifier is None:
            lake.list_namespaces()
        else:
            with suppress(NoSuchTableError):  # this answer shows that the request is allowed
                lake.load_table(identifier)

    return Probe(f"ask the catalog {asked} for {identifier or 'its namespaces'}", needs, load)


def _storage(settings: Settings) -> Iterator[Probe]:
    properties = catalog_properties(settings)
    name = f"{NOBODY}-{uuid4().hex}"
    staging = objects_at(properties, place_of(settings.staging).child("doctor"))

    def keep() -> None:
        staging.write(name, b"")
        staging.read(name)
        staging.remove([name])

    actions = "the role needs s3:PutObject, GetObject and DeleteObject there, and s3:ListBucket on its bucket"
    yield Probe(f"write, read and delete below {settings.staging}", actions, keep)
    codes = [c.code for c in settings.computes.values() if isinstance(c, (Emr, EmrServerless, EmrEks))]
    places = [place for place in [properties.get("warehouse", ""), *codes] if place.startswith("s3://")]
    s3: Any = s3_client(properties, attempts=2) if places else None  # else boto3 may not be installed
    for place in places:
        bucket, prefix = bucket_and_key(place)
        wrong = {"Bucket": bucket, "Key": f"{prefix}/{name}", "Body": b"no", "ContentMD5": WRONG_CHECKSUM}
        attempt = partial(s3.put_object, **wrong)
        yield Probe(f"write below {place}", "the role needs s3:PutObject there", attempt, ("BadDigest",))


def _of_compute(compute: ComputeSettings) -> Iterator[Probe]:
    match compute:
        case Ecs():
            yield from _of_ecs(compute)
        case EmrServerless(application=application):
            emr = client("emr-serverless", attempts=2)
            needs = "the role needs emr-serverless:{} on it".format
            see = partial(emr.get_application, applicationId=application)
            yield Probe(f"see the EMR Serverless application {application}", needs("GetApplication"), see)
            jobs = partial(emr.list_job_runs, applicationId=application, maxResults=1)
            yield Probe(f"list the jobs of {application}", needs("ListJobRuns"), jobs)
        case EmrEks(virtual_cluster=cluster):
            jobs = partial(client("emr-containers", attempts=2).list_job_runs, virtualClusterId=cluster, maxResults=1)
            needs_list = "the role needs emr-containers:ListJobRuns on it"
            yield Probe(f"list the jobs of the virtual cluster {cluster}", needs_list, jobs)
        case Emr(by="id", cluster=cluster):
            see = partial(client("emr", attempts=2).describe_cluster, ClusterId=cluster)
            yield Probe(f"see the EMR cluster {cluster}", "the role needs elasticmapreduce:DescribeCluster on it", see)
        case Emr():
            find = partial(client("emr", attempts=2).list_clusters, ClusterStates=["RUNNING"])
            yield Probe("find EMR clusters", "the role needs elasticmapreduce:ListClusters", find)


def _of_ecs(settings: Ecs) -> Iterator[Probe]:
    ecs, name, cluster = client("ecs", attempts=2), settings.task_definition, settings.cluster
    # A task definition is named by its ARN, or by its family with or without a revision.
    family = name.rpartition("/")[2].partition(":")[0]
    # Has the form of a task's id, but is none's.
    task = "0" * 32
    network = {"subnets": list(settings.subnets), "securityGroups": list(settings.security_groups)}
    started = {
        "cluster": cluster,
        "taskDefinition": f"{family}:{NO_REVISION}",
        "networkConfiguration": {"awsvpcConfiguration": network},
    }
    see = partial(ecs.describe_task_definition, taskDefinition=name)
    yield Probe(f"see the task definition {name}", "the role needs ecs:DescribeTaskDefinition", see)
    there = f"the role needs ecs:{{}} in the cluster {cluster}".format
    start = partial(ecs.run_task, **started)
    yield Probe(f"start tasks of {family}", there("RunTask"), start, ("ClientException",))
    find = partial(ecs.list_tasks, cluster=cluster, startedBy=NOBODY)
    yield Probe(f"find tasks of {cluster}", there("ListTasks"), find)
    watch = partial(ecs.describe_tasks, cluster=cluster, tasks=[task])
    yield Probe(f"watch tasks of {cluster}", there("DescribeTasks"), watch, ("InvalidParameterException",))
    stop = partial(ecs.stop_task, cluster=cluster, task=task)
    yield Probe(f"stop tasks of {cluster}", there("StopTask"), stop, ("InvalidParameterException",))


def _of_queue(queue: QueueSettings) -> Iterator[Probe]:
    # What the job lakehouse_redrive needs. To take from the queue itself is the sensor's business.
    sqs = client("sqs", attempts=2)
    # Timeout 0: a message that is received stays visible to others.
    receive = partial(sqs.receive_message, QueueUrl=queue.dead_letters, VisibilityTimeout=0)
    name = queue.dead_letters.rpartition("/")[2]
    yield Probe(f"receive from {name}", "the role needs sqs:ReceiveMessage on it", receive)
    send = partial(sqs.send_message, QueueUrl=queue.url, MessageBody=UNSENDABLE)
    refused = ("InvalidMessageContents", "AWS.SimpleQueueService.InvalidMessageContents")
    yield Probe(f"send to {queue.name}", "the role needs sqs:SendMessage on it", send, refused)


def _of_dagster(host: str) -> Iterator[Probe]:
    import psycopg2

    names = {"port": "PORT", "dbname": "DB", "user": "USER", "password": "PASSWORD"}
    given = {option: os.environ.get(f"DAGSTER_POSTGRES_{name}") for option, name in names.items()}
    reach = partial(psycopg2.connect, host=host, connect_timeout=5, **given)
    yield Probe(f"reach Dagster's database on {host}", "see the variables DAGSTER_POSTGRES_*", reach)
