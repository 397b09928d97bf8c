"""Run by an environment's own Python: fetches its jars and trains its class-data archive, as ``make setup`` does.
No packages are installed here."""

from __future__ import annotations

import sys
from importlib.metadata import version

from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.environment.spark_setup import (
    COORDINATES,
    DRIVERS,
    EXCLUDED,
    LOCAL_FILES,
    build,
    class_data_archive,
    jar_folder,
    resolve,
)

# EMR 7's Spark, where steps read s3:// through EMR's own file system.
OF_SPARK_3_5 = (
    "org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.10.0",
    "org.apache.iceberg:iceberg-aws-bundle:1.10.0",
    LOCAL_FILES,
    *DRIVERS,
)


def main(iceberg: str) -> None:
    """Set up the Spark that is installed with that version of Iceberg, in LAKEHOUSE_CACHE."""
    settings = read_settings()
    jars = OF_SPARK_3_5 if version("pyspark").startswith("3.5.") else COORDINATES
    # Where a worker looks for the project's jars, in this cache it finds the others.
    resolve(settings, [_with(iceberg, jar) for jar in jars], jar_folder(settings.cache), EXCLUDED)
    build(settings, "lakehouse_assets.worker.training")
    if class_data_archive(settings) is None:
        raise SystemExit("no class-data archive was made")


def _with(iceberg: str, coordinate: str) -> str:
    group, name, given = coordinate.split(":")
    return f"{group}:{name}:{iceberg if group == 'org.apache.iceberg' else given}"


if __name__ == "__main__":
    main(sys.argv[1])
