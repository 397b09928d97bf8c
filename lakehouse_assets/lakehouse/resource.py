"""The one resource assets need, ``lakehouse``: the settings, the catalog and the launcher made from them.
Nothing is opened before an asset asks for it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO, load_file_io

from resources.aws import s3_client
from resources.catalog import catalog_properties, load_lake, outlasting
from resources.launchers.base import Launcher
from resources.settings import Compute, Settings

if TYPE_CHECKING:
    from botocore.client import BaseClient


class Lakehouse:
    """What the environment decides. A test gives another one through ``build_defs(resource_overrides=…)``."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @cached_property
    def launcher(self) -> Launcher:
        if self.settings.compute is Compute.INLINE:
            from resources.launchers.inline import InlineLauncher  # imports pyspark

            return InlineLauncher(self.settings)
        from resources.launchers.local import LocalLauncher

        return LocalLauncher()

    def catalog(self) -> Catalog:
        """The catalog ``lake``, opened anew: a run's op and its worker processes share no connection."""
        return outlasting(lambda: load_lake(self.settings))

    def staging_io(self) -> FileIO:
        """The FileIO that receipts are read and written with."""
        return load_file_io(catalog_properties(self.settings), self.settings.staging)

    def s3(self) -> BaseClient:
        """A boto3 client of S3, with the catalog's settings for storage."""
        return s3_client(catalog_properties(self.settings))

    def spark_conf(self, overrides: dict[str, str]) -> dict[str, str]:
        """A worker's Spark settings, a table's overrides taken in."""
        from resources.spark_runtime import spark_conf

        return spark_conf(self.settings, overrides)
