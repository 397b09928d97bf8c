"""The resource ``pyspark`` for assets that are no tables: dagster-pyspark's session, on the catalog ``lake``.

Imports pyspark: import it only when an asset takes it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Self

from dagster_pyspark import LazyPySparkResource
from pydantic import PrivateAttr
from pyspark.sql import SparkSession

from lakehouse_assets.environment.catalog import catalog_properties, find_table, with_retries
from lakehouse_assets.environment.env_reader import public
from lakehouse_assets.environment.spark_setup import environment, spark_conf
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.worker.session import open_lake, start

Launch = Callable[[Mapping[str, str]], SparkSession]
"""Starts a session with settings that are not secret."""


class LakePySpark(LazyPySparkResource):
    """A LazyPySparkResource with workers' settings.

    Its session reads tables as they are at its start; from a REST catalog, as they are when they are read.
    """

    _open: Callable[[Launch], SparkSession] = PrivateAttr()
    _session: SparkSession | None = PrivateAttr(default=None)

    @classmethod
    def of(cls, lakehouse: Lakehouse, tables: Sequence[str]) -> Self:
        """Makes the resource; starts no JVM yet. Raises SetupError if Java or jars are missing."""
        os.environ.update(environment())
        conf = spark_conf(lakehouse.settings, {}, "inline")
        made = cls(spark_config=public(conf))
        made._open = partial(_open, lakehouse, tables, conf)
        return made

    @property
    def spark_session(self) -> SparkSession:
        """Starts a session, and the JVM unless this process has one. Raises SettingsError."""
        if self._session is None:
            # start() checks the settings, then calls this function with them. The base class needs no argument: it has
            # the same settings in spark_config.
            self._session = self._open(lambda _: super(LakePySpark, self).spark_session)
        return self._session


def _open(lakehouse: Lakehouse, tables: Sequence[str], conf: Mapping[str, str], launch: Launch) -> SparkSession:
    """Returns a session on the catalog, or on an in-memory catalog of these tables; missing tables are left out."""
    properties = catalog_properties(lakehouse.settings)
    # brought is empty because no table brings settings here. It is not None because, with the compute inline, this
    # process's workers share the JVM: so start() returns a session apart from theirs.
    spark, secrets = start(conf, launch, brought=())

    def present() -> dict[str, str]:
        catalog = lakehouse.catalog()
        found = with_retries(lambda: [find_table(catalog, name) for name in tables])
        return {".".join(table.name()): table.metadata_location for table in found if table}

    open_lake(spark, secrets, properties, present)
    return spark
