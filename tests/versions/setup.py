"""Run by an environment's own Python: fetches its jars and trains its class-data archive, as ``make setup`` does.
No packages are installed here."""

from __future__ import annotations

import sys

from lakehouse_assets.environment import spark_setup
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.environment.spark_setup import build, class_data_archive


def main(iceberg: str) -> None:
    """Set up the Spark that is installed with that version of Iceberg, in LAKEHOUSE_CACHE."""
    settings = read_settings()
    ours = spark_setup.coordinates()
    folder = spark_setup.jar_folder(settings.cache)
    if (theirs := tuple(_with(iceberg, coordinate) for coordinate in ours)) != ours:
        spark_setup.coordinates = lambda: theirs
        spark_setup.fetch_jars(settings)
        # Where a worker looks for the project's Iceberg, in this cache it finds the other.
        spark_setup.jar_folder(settings.cache).rename(folder)
        spark_setup.coordinates = lambda: ours
    build(settings, "lakehouse_assets.worker.training")
    if class_data_archive(settings) is None:
        raise SystemExit("no class-data archive was made")


def _with(iceberg: str, coordinate: str) -> str:
    group, name, version = coordinate.split(":")
    return f"{group}:{name}:{iceberg if group == 'org.apache.iceberg' else version}"


if __name__ == "__main__":
    main(sys.argv[1])
