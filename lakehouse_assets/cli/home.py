"""Makes LAKEHOUSE_HOME ready: its folders, Dagster's configuration, the pool's limit, the remains of dead runs.
Nothing is run or served here."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import dagster as dg

from lakehouse_assets.lakehouse.reaper import UNDER_WAY, reap
from lakehouse_assets.lakehouse.slots import POOL
from resources.machine import java_home
from resources.settings import Settings, SettingsError
from resources.spark_runtime import jars

PROJECT = Path(__file__).parents[2]
FOLDERS = ("dagster", "reports", "tmp")


def prepare(settings: Settings) -> None:
    """Make the home and what workers need ready, and point this process and its children to it.

    Raises SettingsError when the home can't be written, SetupError when Java or Spark's jars are missing.
    """
    for folder in (settings.home, *(settings.home / name for name in FOLDERS)):
        _make_writable(folder, settings)
    java_home()
    jars(settings)
    _link(PROJECT / "dagster.yaml", settings.home / "dagster" / "dagster.yaml")
    os.environ["LAKEHOUSE_HOME"] = str(settings.home)
    os.environ["DAGSTER_HOME"] = str(settings.home / "dagster")


def tidy(instance: dg.DagsterInstance, settings: Settings) -> list[str]:
    """Reap dead runs, set the pool's limit, and with no run under way empty the scratch folder.

    Returns the ids of the reaped runs.
    """
    reaped = reap(instance)
    instance.event_log_storage.set_concurrency_slots(POOL, settings.max_workers)
    if not instance.get_runs(dg.RunsFilter(statuses=UNDER_WAY), limit=1):
        for left in (settings.home / "tmp").iterdir():  # of workers that were killed: the others clean up themselves
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    return reaped


def _make_writable(folder: Path, settings: Settings) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise SettingsError(
            f"LAKEHOUSE_HOME={settings.home}: {folder} can't be written ({error.strerror}); "
            "point LAKEHOUSE_HOME to a directory you may write to"
        ) from error


def _link(source: Path, link: Path) -> None:
    if link.is_symlink():
        link.unlink()  # of a checkout that may have moved
    if not link.exists():  # a file of the user's own stays
        link.symlink_to(source)
