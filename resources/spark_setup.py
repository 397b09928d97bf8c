"""Sets Spark up for the workers: fetches the jars and trains the class-data archive, each once.

``make setup`` and the image's build run it; workers only find what is there.
"""

from __future__ import annotations

from resources.class_data import archive_key, class_data_archive, train_archive
from resources.machine import java_home
from resources.settings import Settings
from resources.spark_conf import machine_conf
from resources.spark_jars import fetch_jars, jar_folder


def build(settings: Settings, training: str) -> None:
    """Fetches the jars and trains the archive, each only if it is not there yet, with a printed line about each.

    training: the module that runs a training session (see train_archive). Raises SetupError when the jars can't be
    fetched or Java is missing. Where no archive can be built, workers start without one.
    """
    archive_key.cache_clear()
    java_home()
    if not jar_folder(settings.cache).is_dir():
        print("fetching Spark's jars for Iceberg (130 MB, once) …")
        fetch_jars(settings)
    if class_data_archive(settings) is None:
        print("training the class-data archive, so that workers start faster (half a minute, once) …")
        if problem := train_archive(settings, training, lambda folder: machine_conf(settings, "1g", None, folder)):
            print(f"no class-data archive, workers start slower:\n{problem}")
