"""Set-up of Spark for the workers: the jars are fetched and the class-data archive is trained, each once.
``make setup`` and the image's build run it; workers only find what is there."""

from __future__ import annotations

from collections.abc import Callable

from resources.class_data import archive_key, class_data_archive, train_archive
from resources.machine import java_home
from resources.settings import Settings
from resources.spark_conf import machine_conf
from resources.spark_jars import fetch_jars, jar_folder


def build(settings: Settings, training: str, report: Callable[[str], None] = print) -> None:
    """Fetch the jars and train the archive, each only if it is not there yet.

    training: the module that runs a training session (see train_archive). report: is given a line about each part.
    Raises SetupError when the jars can't be fetched or Java is missing. Where no archive can be built, this is
    reported, and workers start without one.
    """
    archive_key.cache_clear()
    java_home()
    if not jar_folder(settings.cache).is_dir():
        report("fetching Spark's jars for Iceberg (130 MB, once) …")
        fetch_jars(settings)
    if class_data_archive(settings) is None:
        report("training the class-data archive, so that workers start faster (half a minute, once) …")
        if problem := train_archive(settings, training, lambda folder: machine_conf(settings, "1g", None, folder)):
            report(f"no class-data archive, workers start slower:\n{problem}")
