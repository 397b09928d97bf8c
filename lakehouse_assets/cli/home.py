"""Checks and prepares a writable home, Java and Spark's jars.

Imports no Dagster, which takes seconds: problems are reported at once.
"""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import click

from lakehouse_assets.cli.project import enter_project
from lakehouse_assets.environment.catalog import catalog_problems, catalog_properties, data_folders
from lakehouse_assets.environment.catalog_in_spark import spark_catalogs
from lakehouse_assets.environment.databases import check_databases
from lakehouse_assets.environment.env_reader import SettingsError
from lakehouse_assets.environment.machine import java_home
from lakehouse_assets.environment.settings import Settings, read_settings
from lakehouse_assets.environment.spark_setup import build, jars

# The configuration of the home's Dagster instance.
INSTANCE = Path(__file__).with_name("dagster.yaml")
# The folders of a home, besides those for tables' and staged files.
FOLDERS = ("dagster", "reports", "tmp")
# How many materializations Dagster passes to lakehouse_assets/environment/event_log.py at once.
EVENT_BATCH = "1000"


def _cold(context: click.Context, option: click.Parameter, value: bool) -> None:
    # How long a local worker waits for the next chunk.
    if value:
        os.environ["LAKEHOUSE_WORKER_IDLE"] = "PT0S"


cold = click.option(
    "--cold", is_flag=True, expose_value=False, callback=_cold, help="Let no worker stay for the next chunk."
)
"""The option --cold of commands that run workers."""


select = click.option(
    "--select", metavar="SELECTION", help="Only assets selected in Dagster's syntax, such as '+shop/orders'."
)
"""The option --select of commands that work on tables (https://docs.dagster.io/guides/build/assets/asset-selection-syntax)."""


@click.command()
def setup() -> None:
    """Fetch Spark's jars and train the class-data archive.

    Both are kept in LAKEHOUSE_CACHE.
    """
    # An image is set up before its settings are known, so the catalog's are not checked here.
    build(used_by_command(read_settings()), training="lakehouse_assets.worker.training")


def used_by_command(settings: Settings) -> Settings:
    """Notes the settings in click's context, where Commands finds them to explain errors; returns them."""
    click.get_current_context().find_root().obj = settings
    return settings


def ready() -> Settings:
    """Enters the project and prepares its home. From then on, SIGTERM ends the command as Ctrl-C does.

    Raises as enter_project(), read_settings() and prepare().
    """
    enter_project()
    settings = used_by_command(read_settings(check=catalog_problems))
    prepare(settings)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return settings


def prepare(settings: Settings) -> None:
    """Prepares the home, and points this process's environment to it.

    Raises SettingsError if the home or its database is not writable, SetupError without Java or Spark's jars.
    """
    make_writable(settings.home, settings)
    check_databases(settings.home)
    properties = catalog_properties(settings)
    own = data_folders(settings, properties)
    for folder in (*own, *(settings.home / name for name in FOLDERS)):
        make_writable(folder, settings)
    java_home()
    jars(settings)
    spark_catalogs(properties)  # raises SettingsError for a catalog that PyIceberg knows and Spark does not
    _link(INSTANCE, settings.home / "dagster" / "dagster.yaml")
    os.environ["LAKEHOUSE_HOME"] = str(settings.home)
    os.environ["DAGSTER_HOME"] = str(settings.home / "dagster")
    os.environ.setdefault("DAGSTER_EVENT_BATCH_SIZE", EVENT_BATCH)


def make_writable(folder: Path, settings: Settings) -> None:
    """Creates a missing folder. Raises SettingsError if it is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise SettingsError(
            f"LAKEHOUSE_HOME={settings.home}: {folder} can't be written ({error.strerror}); point LAKEHOUSE_HOME to a "
            "directory that you can write to"
        ) from error


def _link(source: Path, link: Path) -> None:
    if link.is_symlink() and link.readlink() == source:
        return  # not written again: another process may be reading it
    if link.is_symlink():
        link.unlink()  # it points into a library that has moved
    if not link.exists():  # the user's own file stays
        link.symlink_to(source)
