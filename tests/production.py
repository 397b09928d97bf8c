"""The surroundings that deploy/dagster.yaml names, on this machine: PostgreSQL, an S3 with its bucket, and of ECS what
the run launcher asks when it is made. No tests here; which processes see them is the tests' to say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import pytest

from tests.fakes.wire import Fault, Service, serving
from tests.postgres import binaries, postgresql
from tests.servers import ACCESS_KEY, REGION, SECRET_KEY, SeaweedFS

TASK_DEFINITION = f"arn:aws:ecs:{REGION}:123456789012:task-definition/lakehouse-run:7"
BUCKET = "logs"


class TaskDefinitions:
    """https://docs.aws.amazon.com/AmazonECS/latest/APIReference/API_DescribeTaskDefinition.html"""

    def describe_task_definition(self, **asked: Any) -> dict[str, Any]:
        if asked["taskDefinition"] not in ("lakehouse-run", TASK_DEFINITION):
            raise Fault("ClientException", "Unable to describe task definition.")
        containers = [{"name": "run", "image": "lakehouse-assets", "essential": True}]
        return {"taskDefinition": {"taskDefinitionArn": TASK_DEFINITION, "containerDefinitions": containers}}


@contextmanager
def surroundings(weed: SeaweedFS) -> Iterator[dict[str, str]]:
    """Started and ended; yields the environment variables. Skips where PostgreSQL is not installed."""
    if binaries() is None:
        missing = pytest.fail if os.environ.get("LAKEHOUSE_REQUIRE_ALL") else pytest.skip
        missing("PostgreSQL is not installed (Debian's package: postgresql)")
    with postgresql() as database, serving(Service("ecs", TaskDefinitions())) as ecs:
        session = boto3.Session(ACCESS_KEY, SECRET_KEY, region_name=REGION)
        session.client("s3", endpoint_url=weed.s3_endpoint).create_bucket(Bucket=BUCKET)
        yield {
            "DAGSTER_POSTGRES_HOST": database.host,
            "DAGSTER_POSTGRES_PORT": str(database.port),
            "DAGSTER_POSTGRES_DB": database.database,
            "DAGSTER_POSTGRES_USER": database.user,
            "DAGSTER_POSTGRES_PASSWORD": "trusted",
            "DAGSTER_LOGS_BUCKET": BUCKET,
            "DAGSTER_RUN_TASK_DEFINITION": "lakehouse-run",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_ENDPOINT_URL_S3": weed.s3_endpoint,
            "AWS_ENDPOINT_URL_ECS": ecs.url,
        }
