"""The examples of what steps import, run in Spark; those of the other names are in tests/unit/test_public_names.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.unit.test_public_names import NEED_SPARK, run_examples

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("name", sorted(NEED_SPARK))
def test_its_example_runs(name: str, jvm: SparkSession, tmp_path: Path) -> None:
    run_examples(name, folder=str(tmp_path), spark=jvm)
