"""A Spark session's ``lake`` as the catalog itself, to read and to change tables there as another engine would.
Workers have copies of their inputs instead: lakehouse_assets/environment/catalog_in_spark.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sqlalchemy import make_url

from lakehouse_assets.environment.catalog import catalog_properties
from lakehouse_assets.environment.catalog_in_spark import spark_catalogs
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.environment.spark_setup import spark_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def live_session(settings: Settings) -> SparkSession:
    """A session in a JVM of this process, with a worker's settings, on the lake of these."""
    from lakehouse_assets.worker.session import build_session, configure  # imports PySpark

    return configure(build_session(spark_conf(settings, {})), live_catalogs(catalog_properties(settings)))


def live_catalogs(properties: Mapping[str, str]) -> dict[str, str]:
    """spark_catalogs() with the catalog itself as ``lake``, be it a REST catalog or one in a SQLite file."""
    if not properties["uri"].startswith("sqlite"):
        return spark_catalogs(properties, live=True)
    lake = {
        "uri": f"jdbc:sqlite:{make_url(properties['uri']).database}",
        "warehouse": properties["warehouse"],
        "clients": "2",  # Iceberg's default
        "jdbc.busy_timeout": "60000",
    }
    return spark_catalogs(properties) | {f"spark.sql.catalog.lake.{name}": value for name, value in lake.items()}
