"""A machine with Spark on it, as EMR's are: its own configuration, environment and jars, nothing of the caller's.
What is submitted to it, and what its end means, is the service's."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3

from lakehouse_assets.environment.machine import java_home
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.environment.spark_setup import jars, spark_home
from tests.support.fakes.agent import Process
from tests.support.servers import ACCESS_KEY, REGION, SECRET_KEY, SeaweedFS

STEPS = Path(__file__).parents[1]
DISTRIBUTED = "local-cluster[2,1,1024]"


@dataclass(frozen=True)
class SparkNode:
    """folder: all the machine has. s3: what it fetches and stores files with."""

    folder: Path
    s3: Any
    environment: Mapping[str, str]

    def submit(self, arguments: Sequence[str], log: Path, delay: float = 0.0) -> Process:
        """``spark-submit`` with these arguments; files they name in S3 are fetched first."""
        files = log.parent / "files"
        local = [",".join(self._local(part, files) for part in argument.split(",")) for argument in arguments]
        return Process([str(self.folder / "spark" / "bin" / "spark-submit"), *local], self.environment, log, delay)

    def store(self, location: str, content: bytes) -> None:
        bucket, _, key = location.partition("://")[2].partition("/")
        self.s3.put_object(Bucket=bucket, Key=key, Body=content)

    def _local(self, part: str, files: Path) -> str:
        if not part.startswith("s3://"):
            return part
        bucket, _, key = part.removeprefix("s3://").partition("/")
        files.mkdir(parents=True, exist_ok=True)
        target = files / key.rpartition("/")[2]
        target.write_bytes(self.s3.get_object(Bucket=bucket, Key=key)["Body"].read())
        return str(target)


def spark_node(weed: SeaweedFS, folder: Path, master: str = "local[2]") -> SparkNode:
    """The machine, whose Spark reaches SeaweedFS. master: DISTRIBUTED has executors in processes of their own."""
    _library(folder / "library")
    _spark(folder / "spark")
    (folder / "conf").mkdir()
    # EMR has Iceberg and an S3 client, and no driver of a database that a catalog may be in.
    known = [jar for jar in jars(read_settings()) if not jar.name.startswith(("org.xerial", "org.postgresql"))]
    classes = ":".join(map(str, known))
    defaults = {
        "spark.master": master,
        "spark.driver.memory": "1g",
        "spark.driver.extraClassPath": classes,
        "spark.executor.extraClassPath": classes,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.executor.defaultJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.local.dir": str(folder / "scratch"),
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",  # EMR has its own at s3://
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    lines = [f"{name} {value}" for name, value in defaults.items()]
    (folder / "conf" / "spark-defaults.conf").write_text("\n".join(lines) + "\n")
    exports = {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(folder / "library"),
        "LAKEHOUSE_HOME": str(folder / "home"),
        **aws(weed),
    }
    script = [f"export {name}={shlex.quote(value)}" for name, value in exports.items()]
    (folder / "conf" / "spark-env.sh").write_text("\n".join(script) + "\n")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "JAVA_HOME": str(java_home()),
        "SPARK_HOME": str(folder / "spark"),
        "SPARK_CONF_DIR": str(folder / "conf"),
    }
    return SparkNode(folder, s3_of(weed), environment)


def aws(weed: SeaweedFS) -> dict[str, str]:
    """What a machine on AWS has by its role: the right to reach S3 and the catalog."""
    keys = {name: value for name, value in weed.environment().items() if "ACCESS_KEY" in name}
    return keys | {"AWS_REGION": REGION, "AWS_DEFAULT_REGION": REGION, "AWS_ENDPOINT_URL_S3": weed.s3_endpoint}


def s3_of(weed: SeaweedFS) -> Any:
    """A boto3 client of SeaweedFS."""
    session = boto3.Session(ACCESS_KEY, SECRET_KEY, region_name=REGION)
    return session.client("s3", endpoint_url=weed.s3_endpoint)


def _spark(folder: Path) -> None:
    """A Spark of the machine's own: executors have their folders in it."""
    folder.mkdir()
    for part in spark_home().iterdir():
        (folder / part.name).symlink_to(part)


def _library(folder: Path) -> None:
    """Python packages installed on the machine: of ours only the tests' steps; the project's code is shipped."""
    (folder / "tests" / "support").mkdir(parents=True)
    for module in STEPS.glob("*.py"):
        shutil.copy(module, folder / "tests" / "support")
