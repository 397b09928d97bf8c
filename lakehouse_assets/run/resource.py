"""The one resource that assets need, ``lakehouse``: settings, and the catalog and launchers that follow from them.

Nothing is opened before an asset needs it.
"""

from __future__ import annotations

import sys
from functools import cache, partial
from typing import TYPE_CHECKING

from resources.aws import s3_client
from resources.catalog import catalog_properties, load_lake, with_retries
from resources.launchers.base import Launcher
from resources.settings import Compute, Settings

if TYPE_CHECKING:
    from botocore.client import BaseClient
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO

# The module that workers run.
WORKER = "lakehouse_assets.worker"


class Lakehouse:
    """The settings of the environment, and what follows from them.

    Tests pass another one to ``build_defs(resource_overrides=…)``.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def landing(self, domain: str) -> str:
        """Returns the domain's part of the drop zone, ``<LAKEHOUSE_LANDING>/<domain>``: a path or a URL."""
        return f"{self.settings.landing}/{domain}"

    def launcher(self, compute: Compute | None = None) -> Launcher:
        """Returns the launcher of a table's workers. compute: the table's own; None for LAKEHOUSE_COMPUTE."""
        return self._launchers(compute or self.settings.compute)

    @cache  # noqa: B019  a resource lives as long as its process
    def _launchers(self, compute: Compute) -> Launcher:
        match compute:
            case Compute.INLINE:
                from lakehouse_assets.worker.perform import perform
                from resources.launchers.inline import InlineLauncher  # imports pyspark

                return InlineLauncher(partial(perform, settings=lambda: self.settings))
            case Compute.LOCAL:
                from resources.launchers.local import LocalLauncher

                return LocalLauncher((sys.executable, "-m", WORKER))
            case Compute.ECS:
                from resources.launchers.ecs import EcsLauncher

                return EcsLauncher(self.settings, ("python", "-m", WORKER))
            case Compute.EMR:
                from resources.launchers.emr import EmrLauncher

                return EmrLauncher(self.settings, WORKER)
            case Compute.EMR_SERVERLESS:
                from resources.launchers.emr_serverless import EmrServerlessLauncher

                return EmrServerlessLauncher(self.settings, WORKER)

    def catalog(self) -> Catalog:
        """Opens the catalog ``lake`` anew: a run's op and its worker processes share no connection."""
        return with_retries(lambda: load_lake(self.settings))

    def staging_io(self) -> FileIO:
        """Returns the FileIO for receipts, and for all else that lies below LAKEHOUSE_STAGING."""
        from pyiceberg.io import load_file_io

        return load_file_io(catalog_properties(self.settings), self.settings.staging)

    def s3(self) -> BaseClient:
        """Returns a boto3 client with the catalog's settings for storage."""
        return s3_client(catalog_properties(self.settings))
