"""Trains and finds the class-data archive that lets a worker's JVM start faster: one for a Java and a set of jars.

What a training session does is its module's business, which is passed in by name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

from resources.machine import java_home
from resources.settings import Settings
from resources.spark_jars import digest, jar_folder, last_lines, put_in_place, run, scratch_beside
from resources.spark_versions import spark_home

FOLDER = "archives"


def class_data_archive(settings: Settings) -> Path | None:
    """Finds the archive made with this Java, this Spark and these jars; None when there is none.

    Its name holds its size: a JVM crashes over a truncated archive.
    """
    found = (settings.cache / FOLDER).glob(f"{archive_key(settings.cache, java_home())}-*.jsa")
    return next((a for a in found if a.stem.endswith(f"-{a.stat().st_size}")), None)


@cache
def archive_key(cache_folder: Path, home: Path) -> str:
    """Returns 16 hex digits over all that an archive depends on. home: the Java's."""
    # The JVM itself compares every file's path, size and time before it uses an archive. It compares whole seconds: an
    # image that was pushed and pulled has lost the fractions.
    files = [*home.rglob("libjvm.*"), *sorted((spark_home() / "jars").glob("*.jar"))]
    files += sorted(jar_folder(cache_folder).glob("*.jar"))
    stats = [(f, f.stat()) for f in files]
    return digest([version("pyspark"), *(f"{f} {s.st_size} {int(s.st_mtime)}" for f, s in stats)])


def train_archive(settings: Settings, module: str, conf: Callable[[Path], Mapping[str, str]]) -> str | None:
    """Runs a small session like a worker's in a JVM that writes an archive of its loaded classes when it exits.

    module: the name of what runs the session; its argument is the path of a JSON file with its settings, ``conf``, and
    a ``scratch`` directory for its files. conf: Spark's settings for a session in that directory.
    Returns the end of the output when no archive was written, else None.
    """
    key = archive_key(settings.cache, java_home())
    with scratch_beside(settings.cache / FOLDER / key) as scratch:
        archive = scratch / "classes.jsa"
        writing = {"spark.driver.extraJavaOptions": f'"-XX:ArchiveClassesAtExit={archive}"'}
        plan = scratch / "training.json"
        plan.write_text(json.dumps({"conf": {**conf(scratch), **writing}, "scratch": str(scratch)}))
        done = run([sys.executable, "-m", module, plan])
        if done.returncode or not archive.is_file():
            return last_lines(done.stdout)
        put_in_place(archive, settings.cache / FOLDER / f"{key}-{archive.stat().st_size}.jsa")
    return None
