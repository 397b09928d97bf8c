"""Makes a project: a folder with a code location of one domain, whose one table `lakehouse run` fills.

Which folder is a project is project.py's; what may be declared in one, docs/tables.md tells.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from lakehouse_assets.environment.machine import command
from lakehouse_assets.errors import LakehouseError

NAME = re.compile(r"[a-z][a-z0-9_-]*")
FILES: Mapping[str, str] = {
    "pyproject.toml": """\
[project]
name = "{name}"
version = "0.1.0"
requires-python = ">=3.11,<3.14"
dependencies = ["lakehouse-assets"]

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "{package}"
""",
    ".gitignore": """\
.lakehouse/
.venv/
__pycache__/
""",
    "{package}/__init__.py": "",
    "{package}/definitions.py": """\
from lakehouse_assets import Domain, code_location, tables_of
from {package} import tables

defs = code_location(Domain("{package}", tables=tables_of(tables)))
""",
    "{package}/tables.py": '''\
"""The declarations of the tables; their rows are computed in steps.py."""

import dagster as dg

from lakehouse_assets import Table, column

orders = Table(
    identifier="{package}.orders",
    columns=[
        column("day", "date", "Day of the order", required=True),
        column("order_id", "int", "Number of the order, by day", required=True),
        column("amount", "decimal(9,2)", "Euros"),
    ],
    step="{package}.steps:orders",
    partitions=dg.DailyPartitionsDefinition(start_date="2026-01-01", end_date="2026-01-08"),
    partitioned_by=["day"],
    unique=["order_id"],
)
''',
    "{package}/steps.py": '''\
"""The steps: each computes the rows of its table for the partitions that its window names."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse_assets import Window


def orders(spark: SparkSession, window: Window) -> DataFrame:
    """Ten made-up orders a day. Real ones are read by read_csv(), from files in window.landing."""
    days = spark.createDataFrame([(day,) for day in window.keys], "day string")
    return days.select(
        F.to_date("day").alias("day"),
        F.explode(F.sequence(F.lit(1), F.lit(10))).alias("order_id"),
        F.lit("9.90").cast("decimal(9,2)").alias("amount"),
    )
''',
}


def make_project(name: str, parent: Path) -> str:
    """Writes the project into a new folder of that name, and returns what to type next.

    The Python package, the domain and the Iceberg namespace have the name as well, with ``_`` for ``-``. Raises
    LakehouseError for a name that can't be one, or that is taken, and OSError.
    """
    if not NAME.fullmatch(name):
        raise LakehouseError(f"{name!r} can't be a project's name: lower case, digits, - and _, a letter first")
    package, folder = name.replace("-", "_"), parent / name
    if find_spec(package) is not None:
        raise LakehouseError(f"{package} is the name of a Python package that is installed; choose another name")
    if folder.exists():
        raise LakehouseError(f"{folder} exists already")
    for path, text in FILES.items():
        file = folder / path.format(package=package)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.format(name=name, package=package))
    commands = (command(one, folder) for one in ("setup", "run", "ui"))
    return "\n  ".join([f"made {folder}; now:", f"cd {name}", *commands])
