"""What AWS would have to allow for a request on the wire: its role, IAM's actions and resources, and conditions' keys.
By the Service Authorization Reference. Who sends requests, and what policies say of them, is not here."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree

import botocore.session
from botocore.model import ServiceModel

from tests.support.fakes.ecs_rules import ACCOUNT
from tests.support.fakes.wire import routed
from tests.support.servers import BUCKET, REGION

PROOF = Path(__file__).parents[2] / "deploy" / "proof"
CREDENTIAL = re.compile(r"Credential=(?P<key>[^/]+)/\d{8}/[^/]+/(?P<service>[^/]+)/aws4_request")
# botocore's names of services, where they are not what signatures have.
SERVICES = {"elasticmapreduce": "emr"}
ECS = "ecs-tasks.amazonaws.com"
TABLE_BUCKET = f"arn:aws:s3tables:{REGION}:{ACCOUNT}:bucket/lakehouse-tables"

Allowance: TypeAlias = tuple[str, str, Mapping[str, str]]
"""An action, a resource, and the keys of conditions with their values."""


@dataclass(frozen=True, order=True)
class Call:
    """One thing that a role must be allowed. keys: of conditions, with their values."""

    role: str
    action: str
    resource: str
    keys: tuple[tuple[str, str], ...] = ()


# What follows is another one each time.
ONE_OF_MANY = re.compile(r"((?::task/[^/]+|/jobruns|:log-stream:\w+/\w+|:table/[^/]+)/|:cluster/j-)[^/]+$")


def essential(call: Call) -> Call:
    """The call without what differs from one run to the next: which task or job it is, and of an object all but the
    area of the lake that it lies in."""
    if not call.action.startswith("s3:"):
        return replace(call, resource=ONE_OF_MANY.sub(r"\g<1>0", call.resource))
    bucket, _, key = call.resource.partition("/")
    area = f"{bucket}/{key.partition('/')[0]}/0" if key else bucket
    return replace(call, resource=area, keys=())  # a missing object is looked for without a prefix: none decides


def read_calls(name: str) -> list[Call]:
    """The calls that a file of deploy/proof/ has."""
    found = json.loads((PROOF / name).read_text())
    return [Call(**{**call, "keys": tuple(map(tuple, call["keys"]))}) for call in found]


def assert_recorded(name: str, calls: Iterable[Call]) -> None:
    """These calls, each once, are those of a file of deploy/proof/. UPDATE_SNAPSHOT=1 writes it, to be reviewed."""
    found = sorted(set(map(essential, calls)))
    if os.environ.get("UPDATE_SNAPSHOT") == "1":
        lines = ",\n".join(json.dumps(asdict(call)) for call in found)  # one a line, as they are compared
        (PROOF / name).write_text(f"[\n{lines}\n]\n")
    assert found == read_calls(name)


@dataclass
class Recorder:
    """Collects the calls that a proxy hears. roles: by access key id; requests of other keys are left out.

    passed: the roles that a task of ECS gets, by its definition's family.
    """

    roles: dict[str, tuple[str, ...]] = field(default_factory=dict)
    passed: dict[str, list[str]] = field(default_factory=dict)
    calls: set[Call] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def hear(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> None:
        """Record what a request asks for."""
        by_name = {name.lower(): value for name, value in headers.items()}
        signed = CREDENTIAL.search(by_name.get("authorization", ""))
        if signed is None or signed["key"] not in self.roles:
            return
        if signed["service"] == "s3":
            found = list(s3_allowances(method, path, by_name, body))
        elif signed["service"] == "s3tables":
            found = list(s3_tables_allowances(method, path))
        elif signed["service"] == "ec2":
            found = [(f"ec2:{parse_qs(body.decode())['Action'][0]}", "*", {})]
        else:
            model = _model(SERVICES.get(signed["service"], signed["service"]))
            operation, parameters = routed(model, method, path, by_name.get("x-amz-target", ""), body)
            found = list(self._allowances(signed["service"], operation.name, parameters))
        roles = self.roles[signed["key"]]
        with self._lock:
            self.calls |= {
                Call(role, action, resource, tuple(sorted(keys.items())))
                for action, resource, keys in found
                for role in roles
            }

    def _allowances(self, service: str, operation: str, asked: Mapping[str, Any]) -> Iterator[Allowance]:
        match service:
            case "sqs":
                yield f"sqs:{operation.removesuffix('Batch')}", _arn("sqs", asked["QueueUrl"].rpartition("/")[2]), {}
            case "glue":
                yield from ((f"glue:{operation}", resource, {}) for resource in _glue(asked))
            case "logs":
                group, stream = asked["logGroupName"], asked["logStreamName"]
                yield f"logs:{operation}", _arn("logs", f"log-group:{group}:log-stream:{stream}"), {}
            case "ecs":
                yield from self._ecs(operation, asked)
            case "emr-serverless":
                yield from _emr_serverless(operation, asked)
            case "emr-containers":
                yield from _emr_containers(operation, asked)
            case "elasticmapreduce":
                cluster = asked.get("JobFlowId") or asked["ClusterId"]
                yield f"elasticmapreduce:{operation}", _arn("elasticmapreduce", f"cluster/{cluster}"), {}
            case _:
                raise AssertionError(f"nobody has said what {service}:{operation} needs")

    def _ecs(self, operation: str, asked: Mapping[str, Any]) -> Iterator[Allowance]:
        name = asked.get("cluster", "").rpartition("/")[2]
        cluster = {"ecs:cluster": _arn("ecs", f"cluster/{name}")} if name else {}
        match operation:
            case "RunTask":
                family = asked["taskDefinition"].rpartition("/")[2].partition(":")[0]
                yield "ecs:RunTask", _arn("ecs", f"task-definition/{family}:1"), cluster
                # https://docs.aws.amazon.com/AmazonECS/latest/developerguide/supported-iam-actions-tagging.html
                yield "ecs:TagResource", _arn("ecs", f"task/{name}/0"), {"ecs:CreateAction": "RunTask"}
                own = asked.get("overrides", {}).get("taskRoleArn")
                for role in [*self.passed[family], *([own] if own else [])]:
                    yield "iam:PassRole", role, {"iam:PassedToService": ECS}
            case "StopTask" | "DescribeTasks":
                for task in asked.get("tasks") or [asked["task"]]:  # whose name has the cluster's
                    yield f"ecs:{operation}", task, {}
            case _:
                yield f"ecs:{operation}", "*", cluster


def _emr_serverless(operation: str, asked: Mapping[str, Any]) -> Iterator[Allowance]:
    application = _arn("emr-serverless", f"/applications/{asked['applicationId']}")
    job = f"{application}/jobruns/{asked['jobRunId']}" if "jobRunId" in asked else application
    yield f"emr-serverless:{operation}", job, {}
    if operation == "StartJobRun":
        yield "emr-serverless:TagResource", f"{application}/jobruns/0", {}
        yield "iam:PassRole", asked["executionRoleArn"], {"iam:PassedToService": "emr-serverless.amazonaws.com"}


def _emr_containers(operation: str, asked: Mapping[str, Any]) -> Iterator[Allowance]:
    """Which role a job gets is a condition here, and nobody has to be allowed to pass it.

    https://docs.aws.amazon.com/emr/latest/EMR-on-EKS-DevelopmentGuide/iam-execution-role.html
    """
    cluster = _arn("emr-containers", f"/virtualclusters/{asked['virtualClusterId']}")
    job = f"{cluster}/jobruns/{asked['id']}" if "id" in asked else cluster
    role = {"emr-containers:ExecutionRoleArn": asked["executionRoleArn"]} if operation == "StartJobRun" else {}
    yield f"emr-containers:{operation}", job, role
    if operation == "StartJobRun":
        yield "emr-containers:TagResource", f"{cluster}/jobruns/0", {}


def s3_allowances(method: str, path: str, headers: Mapping[str, str], body: bytes) -> Iterator[Allowance]:
    """What a request to S3 needs, its bucket in its path.

    https://docs.aws.amazon.com/AmazonS3/latest/userguide/using-with-s3-policy-actions.html
    """
    url = urlsplit(path)
    bucket, _, key = unquote(url.path).lstrip("/").partition("/")
    if bucket == BUCKET:
        yield from _of_table_bucket(method, key)
        return
    query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
    whole, one = f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/{key}"
    if not key:
        yield from _of_bucket(method, query, whole, body)
        return
    match method:
        case "GET" | "HEAD":
            yield ("s3:GetObjectVersion" if "versionId" in query else "s3:GetObject"), one, {}
        case "PUT" | "POST":
            if source := unquote(headers.get("x-amz-copy-source", "")).lstrip("/"):
                name, _, version = source.partition("?versionId=")
                yield ("s3:GetObjectVersion" if version else "s3:GetObject"), f"arn:aws:s3:::{name}", {}
            yield "s3:PutObject", one, {}
        case "DELETE" if "uploadId" in query:
            yield "s3:AbortMultipartUpload", one, {}
        case "DELETE":
            yield ("s3:DeleteObjectVersion" if "versionId" in query else "s3:DeleteObject"), one, {}
        case _:
            raise AssertionError(f"nobody has said what {method} {path} needs")


def _of_bucket(method: str, query: Mapping[str, str], bucket: str, body: bytes) -> Iterator[Allowance]:
    prefix = {"s3:prefix": query["prefix"]} if "prefix" in query else {}
    match method:
        case "POST" if "delete" in query:
            for item in ElementTree.fromstring(body).iterfind("{*}Object"):
                action = "s3:DeleteObjectVersion" if item.findtext("{*}VersionId") else "s3:DeleteObject"
                yield action, f"{bucket}/{item.findtext('{*}Key')}", {}
        case "GET" if "versioning" in query:
            yield "s3:GetBucketVersioning", bucket, {}
        case "GET" if "list-type" in query:
            yield "s3:ListBucket", bucket, prefix
        case _:
            raise AssertionError(f"nobody has said what {method} {bucket} with {query} needs")


def s3_tables_allowances(method: str, path: str) -> Iterator[Allowance]:
    """What a request to the Iceberg REST catalog of S3 Tables needs.

    https://docs.aws.amazon.com/AmazonS3/latest/userguide/s3-tables-integrating-open-source.html
    """
    url = urlsplit(path)
    parts = [part for part in unquote(url.path).partition("/namespaces")[2].split("/") if part]  # nyc, tables, flights
    keys = {"s3tables:namespace": parts[0]} if parts else {}
    match method, len(parts):
        case "GET", 0 if url.path.endswith("/config"):
            yield "s3tables:GetTableBucket", TABLE_BUCKET, {}
        case "GET", 0:
            yield "s3tables:ListNamespaces", TABLE_BUCKET, {}
        case "POST", 0:
            yield "s3tables:CreateNamespace", TABLE_BUCKET, {}
        case (("GET" | "HEAD"), 1):
            yield "s3tables:GetNamespace", TABLE_BUCKET, keys
        case "GET", 2:
            yield "s3tables:ListTables", TABLE_BUCKET, keys
        case "POST", 2:
            yield "s3tables:CreateTable", TABLE_BUCKET, keys
            yield "s3tables:PutTableData", f"{TABLE_BUCKET}/table/0", keys
        case "GET", 3:
            for action in ("GetTableMetadataLocation", "GetTableData"):
                yield f"s3tables:{action}", f"{TABLE_BUCKET}/table/0", keys
        case "HEAD", 3:
            yield "s3tables:GetTable", f"{TABLE_BUCKET}/table/0", keys
        case "POST", 3:
            for action in ("UpdateTableMetadataLocation", "PutTableData", "GetTableData"):
                yield f"s3tables:{action}", f"{TABLE_BUCKET}/table/0", keys
        case _:
            raise AssertionError(f"nobody has said what {method} {path} needs")


def _of_table_bucket(method: str, key: str) -> Iterator[Allowance]:
    """Of files of a table in S3 Tables. Nobody may list or delete any; SeaweedFS has a table's namespace in its key."""
    action = {"GET": "GetTableData", "HEAD": "GetTableData", "PUT": "PutTableData", "POST": "PutTableData"}[method]
    yield f"s3tables:{action}", f"{TABLE_BUCKET}/table/0", {"s3tables:namespace": key.partition("/")[0]}


def _glue(asked: Mapping[str, Any]) -> Iterator[str]:
    """The catalog, its database and the table: an action on a table needs all three."""
    database = asked.get("DatabaseName") or asked.get("Name") or asked.get("DatabaseInput", {}).get("Name")
    of_database = asked.get("Name") if "DatabaseName" in asked else None
    table = asked.get("TableName") or asked.get("TableInput", {}).get("Name") or of_database
    yield _arn("glue", "catalog")
    if database:
        yield _arn("glue", f"database/{database}")
    if table:
        yield _arn("glue", f"table/{database}/{table}")


def _arn(service: str, resource: str) -> str:
    return f"arn:aws:{service}:{REGION}:{ACCOUNT}:{resource}"


@cache
def _model(service: str) -> ServiceModel:
    return botocore.session.get_session().get_service_model(service)
