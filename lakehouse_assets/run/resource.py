"""The resource ``lakehouse``: settings, catalog and launchers, opened on demand."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from lakehouse_assets.environment.aws import s3_client
from lakehouse_assets.environment.catalog import catalog_properties, load_lake, with_retries
from lakehouse_assets.environment.launchers.base import Launcher
from lakehouse_assets.environment.settings import Settings

if TYPE_CHECKING:
    from botocore.client import BaseClient
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO

# The package that a worker's process runs, by ``python -m``.
WORKER = "lakehouse_assets.worker"


class Lakehouse:
    """The settings of the environment, and what follows from them.

    Assets that are no tables take it by name. Tests pass another one to ``code_location(resources=…)``.

    Examples:
        >>> import dagster as dg
        >>> from lakehouse_assets import Lakehouse
        >>> @dg.asset
        ... def orders_landed(lakehouse: dg.ResourceParam[Lakehouse]) -> str:
        ...     return lakehouse.landing("shop")
        ...
        >>> "lakehouse" in orders_landed.required_resource_keys
        True
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def landing(self, domain: str) -> str:
        """Returns the domain's part of the drop zone, a path or a URL."""
        return f"{self.settings.landing}/{domain}"

    @cache  # noqa: B019  a resource lives as long as its process
    def launcher(self, compute: str | None = None) -> Launcher:
        """Returns the launcher of workers. compute: a table's own; None for LAKEHOUSE_COMPUTE."""
        return self.settings.computes[compute or self.settings.compute].launcher(self.settings, WORKER)

    def catalog(self) -> Catalog:
        """Opens the catalog ``lake`` afresh at each call: a run's op and its workers share no connection."""
        return with_retries(lambda: load_lake(self.settings))

    def staging_io(self) -> FileIO:
        """Returns the FileIO for everything below LAKEHOUSE_STAGING: plans, receipts, journals."""
        from pyiceberg.io import load_file_io

        return load_file_io(catalog_properties(self.settings), self.settings.staging)

    def s3(self) -> BaseClient:
        """Returns a boto3 client with the catalog's storage settings."""
        return s3_client(catalog_properties(self.settings))
