"""Real servers for tests, on free loopback ports: SeaweedFS (S3 and an Iceberg REST catalog) and moto (Glue, S3).
No fixtures here (conftest has them) and nothing that belongs to one test."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

ACCESS_KEY, SECRET_KEY = "lakehouse-test", "lakehouse-test-secret"
REGION = "us-east-1"
BUCKET = "lake"  # a table bucket: takes only what belongs to a table, as S3 Tables does
PLAIN_BUCKET = "plain"  # for everything else: receipts, landing
# SeaweedFS derives each gRPC port by adding this to the HTTP port.
GRPC_OFFSET = 10_000
START_SECONDS = 60
EVERYTHING_IN_S3 = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Action": ["s3:*"], "Resource": ["arn:aws:s3:::*"]}],
    }
)


@dataclass(frozen=True)
class SeaweedFS:
    """A running server. catalog_uri: of the Iceberg REST catalog; s3_endpoint: of S3; warehouse: a table bucket's ARN.

    plain: the prefix of a bucket for everything that is no table. metrics: where it tells what it was asked.
    """

    pid: int
    catalog_uri: str
    s3_endpoint: str
    warehouse: str
    folder: Path
    metrics: str
    plain: str = f"s3://{PLAIN_BUCKET}"

    def properties(self, catalog_uri: str | None = None) -> dict[str, str]:
        """PyIceberg's properties of the catalog. catalog_uri: a proxy in front of it, to break the wire."""
        return {
            "type": "rest",
            "uri": catalog_uri or self.catalog_uri,
            "warehouse": self.warehouse,
            "rest.sigv4-enabled": "true",
            "rest.signing-name": "s3tables",
            "rest.signing-region": REGION,
            "client.access-key-id": ACCESS_KEY,
            "client.secret-access-key": SECRET_KEY,
            "client.region": REGION,
            **self.s3_properties(),
        }

    def s3_properties(self) -> dict[str, str]:
        """PyIceberg's FileIO properties."""
        return {
            "s3.endpoint": self.s3_endpoint,
            "s3.access-key-id": ACCESS_KEY,
            "s3.secret-access-key": SECRET_KEY,
            "s3.region": REGION,
        }

    def keys(self, user: str) -> dict[str, str]:
        """New keys, good for everything in S3 until revoke(user), as FileIO properties."""
        iam = self._client("iam")
        iam.create_user(UserName=user)
        iam.put_user_policy(UserName=user, PolicyName="all", PolicyDocument=EVERYTHING_IN_S3)
        made = iam.create_access_key(UserName=user)["AccessKey"]
        return {"s3.access-key-id": made["AccessKeyId"], "s3.secret-access-key": made["SecretAccessKey"]}

    def revoke(self, user: str, keys: dict[str, str]) -> None:
        self._client("iam").delete_access_key(UserName=user, AccessKeyId=keys["s3.access-key-id"])

    def session(self, user: str, seconds: float) -> dict[str, str]:
        """Keys with a session token, as a catalog vends them, good until end_session(user), as FileIO properties.

        seconds: what they say of their life, from now.
        """
        own = self.keys(user)
        sts = self._client("sts", own["s3.access-key-id"], own["s3.secret-access-key"])
        made = sts.get_federation_token(Name=user, Policy=EVERYTHING_IN_S3, DurationSeconds=3600)["Credentials"]
        return {
            "s3.access-key-id": made["AccessKeyId"],
            "s3.secret-access-key": made["SecretAccessKey"],
            "s3.session-token": made["SessionToken"],
            "s3.session-token-expires-at-ms": str(int((time.time() + seconds) * 1000)),
        }

    def end_session(self, user: str) -> None:
        iam = self._client("iam")
        for key in iam.list_access_keys(UserName=user)["AccessKeyMetadata"]:
            iam.delete_access_key(UserName=user, AccessKeyId=key["AccessKeyId"])
        iam.delete_user(UserName=user)

    def _client(self, service: str, key: str = ACCESS_KEY, secret: str = SECRET_KEY) -> Any:
        import boto3

        return boto3.Session(key, secret, region_name=REGION).client(service, endpoint_url=self.s3_endpoint)

    def environment(self) -> dict[str, str]:
        """The same catalog as ``lake`` by environment variables, for a process under test."""
        variables = {
            f"PYICEBERG_CATALOG__LAKE__{name.upper().replace('.', '__').replace('-', '_')}": value
            for name, value in self.properties().items()
        }
        return {**variables, "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": REGION}


@contextmanager
def seaweedfs() -> Iterator[SeaweedFS]:
    """Start SeaweedFS with one table bucket, ``lake``; it and its folder are gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="seaweedfs-"))
    names = ("master.port", "volume.port", "filer.port", "admin.port", "s3.port", "s3.port.iceberg", "metricsPort")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    command = [
        Path(sysconfig.get_path("scripts"), "weed"),
        "-logtostderr",
        "mini",
        f"-dir={folder}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-master.telemetry=false",
        "-webdav=false",
        "-admin.ui=false",
        "-s3.port.lance=0",
        "-s3.iam.readOnly=false",  # keys can be made and revoked
        *(f"-{name}={port}" for name, port in ports.items()),
    ]
    credentials = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    log = folder / "weed.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, stdout=output, stderr=output, env={**os.environ, **credentials}, start_new_session=True
        )
    try:
        catalog, s3 = (f"http://127.0.0.1:{ports[name]}" for name in ("s3.port.iceberg", "s3.port"))
        for url in (s3, f"{catalog}/v1/config"):
            wait_until_it_answers(url, process, log)
        metrics = f"http://127.0.0.1:{ports['metricsPort']}/metrics"
        yield SeaweedFS(process.pid, catalog, s3, _create_buckets(s3), folder, metrics)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def s3_requests(metrics: str) -> int:
    """How many requests of all clients S3 has answered so far. metrics: the address of SeaweedFS's metrics."""
    time.sleep(0.5)  # a request is counted a moment after its answer
    with urllib.request.urlopen(metrics, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith("SeaweedFS_s3_request_total"))


@dataclass(frozen=True)
class Moto:
    """A running moto: Glue and S3 on one endpoint. Its Glue loses concurrent commits: for single writers only."""

    uri: str

    def properties(self) -> dict[str, str]:
        """PyIceberg's properties of the catalog. Keys for Glue itself come by AWS_ACCESS_KEY_ID."""
        return {
            "type": "glue",
            "warehouse": f"s3://{PLAIN_BUCKET}/warehouse",
            "glue.endpoint": self.uri,
            "glue.region": REGION,
            "s3.endpoint": self.uri,
            "s3.access-key-id": ACCESS_KEY,
            "s3.secret-access-key": SECRET_KEY,
            "s3.region": REGION,
        }


@contextmanager
def moto() -> Iterator[Moto]:
    """Start moto with one bucket."""
    import boto3

    (port,) = free_ports(1)
    folder = Path(tempfile.mkdtemp(prefix="moto-"))
    log = folder / "moto.log"
    command = [Path(sysconfig.get_path("scripts"), "moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)
    uri = f"http://127.0.0.1:{port}"
    try:
        wait_until_it_answers(f"{uri}/moto-api/data.json", process, log)
        session = boto3.Session(ACCESS_KEY, SECRET_KEY, region_name=REGION)
        session.client("s3", endpoint_url=uri).create_bucket(Bucket=PLAIN_BUCKET)
        yield Moto(uri)
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(folder, ignore_errors=True)


def configured(properties: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a catalog's properties as variables of this process and its workers."""
    for name, value in properties.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name.upper().replace('.', '__').replace('-', '_')}", value)


def free_ports(count: int) -> list[int]:
    """Ports free on loopback together with their gRPC twins, below the range outgoing connections take theirs from."""
    found: list[int] = []
    while len(found) < count:
        # Below the first gRPC port, so that no server's port is another one's gRPC port.
        port = random.randrange(10_240, 10_240 + GRPC_OFFSET)
        if port not in found and _free(port) and _free(port + GRPC_OFFSET):
            found.append(port)
    return found


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def wait_until_it_answers(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            urllib.request.urlopen(url, timeout=5)
            return
        except urllib.error.HTTPError:  # it speaks HTTP, it only wants a signature
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{process.args[0]} did not start:\n{log.read_text()}") from None
            time.sleep(0.1)


def _create_buckets(endpoint: str) -> str:
    """Make both buckets; returns the ARN of the table bucket."""
    import boto3

    session = boto3.Session(ACCESS_KEY, SECRET_KEY, region_name=REGION)
    session.client("s3", endpoint_url=endpoint).create_bucket(Bucket=PLAIN_BUCKET)
    return session.client("s3tables", endpoint_url=endpoint).create_table_bucket(name=BUCKET)["arn"]
