"""Versions of Spark and Iceberg that Amazon EMR brings, each in an environment of its own: declared, built and found.
What workers have to do on them is in tests/integration/test_versions.py."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.environment.spark_setup import COORDINATES, EXCLUDED

ROOT = Path(__file__).parents[2]
# What a worker imports beside Spark, in the versions that the project has.
PACKAGES = (
    "boto3",
    "confluent-kafka",
    "dagster-pipes",
    "pandas",
    "psycopg2-binary",
    "pyarrow",
    "pyiceberg",
    "sqlalchemy",
    "sqlglot",
)


@dataclass(frozen=True)
class Combination:
    """One Spark with one Iceberg, by their exact versions, and the Python they run beside."""

    pyspark: str
    iceberg: str
    python: str = "3.11"

    def __str__(self) -> str:
        return f"spark-{self.pyspark}-iceberg-{self.iceberg}"

    @property
    def folder(self) -> Path:
        """The environment, and what workers in it have for LAKEHOUSE_CACHE."""
        return read_settings().cache / "versions" / str(self)

    @property
    def interpreter(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    @property
    def built(self) -> bool:
        """Whether it is there, whole, and with the packages and jars that it should have today."""
        return self._stamp.is_file() and self._stamp.read_text() == self._content()

    def build(self) -> None:
        """Make it anew; some minutes, mostly of download. Raises subprocess.CalledProcessError."""
        shutil.rmtree(self.folder, ignore_errors=True)
        _uv("venv", "--python", self.python, str(self.folder / "venv"))
        install = ("pip", "install", "--compile-bytecode", "--python", str(self.interpreter))
        # By itself first: to read what it depends on, uv would fetch its source and build it anew, cached or not.
        _uv(*install, "--no-deps", f"pyspark=={self.pyspark}")
        _uv(*install, *self._requirements())
        subprocess.run(
            [self.interpreter, "-m", "tests.versions.setup", self.iceberg],
            env={**os.environ, "LAKEHOUSE_CACHE": str(self.folder), "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            check=True,
        )
        self._stamp.write_text(self._content())

    @property
    def _stamp(self) -> Path:
        return self.folder / "built"

    def _requirements(self) -> list[str]:
        return [f"pyspark=={self.pyspark}", *(f"{package}=={version(package)}" for package in PACKAGES)]

    def _content(self) -> str:
        content = [self._requirements(), COORDINATES, EXCLUDED, (Path(__file__).parent / "setup.py").read_text()]
        return hashlib.sha256(repr(content).encode()).hexdigest()


COMBINATIONS = (
    # emr-spark-8.1
    Combination("4.1.1", "1.11.0"),
    # emr-7.12 and 7.13: docs.aws.amazon.com/emr/latest/ReleaseGuide/Iceberg-release-history.html
    Combination("3.5.6", "1.10.0"),
)


def _uv(*arguments: str) -> None:
    subprocess.run([ROOT / "scripts" / "uv", *arguments], check=True)
