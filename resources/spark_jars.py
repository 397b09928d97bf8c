"""Fetches the jars that Spark needs beside its own, once, by Spark's resolver, and finds them in the cache.

Which ones they are is decided by spark_versions.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from resources.machine import SetupError
from resources.settings import Settings
from resources.spark_versions import EXCLUDED, coordinates, environment, spark_home


def jar_folder(cache: Path) -> Path:
    """Returns the folder that holds the jars of coordinates() once they are fetched. cache: as in Settings."""
    return cache / "jars" / digest(coordinates() + EXCLUDED)


def jars(settings: Settings) -> list[Path]:
    """Finds the jars of coordinates(), in a fixed order. Raises SetupError when set-up has not run."""
    folder = jar_folder(settings.cache)
    if not folder.is_dir():
        raise SetupError(f"Iceberg's jars for Spark are not in {folder}; run `make setup`")
    return sorted(folder.glob("*.jar"))


def fetch_jars(settings: Settings) -> None:
    """Lets Spark's own resolver fetch the jars from Maven Central. Raises SetupError with the resolver's last lines."""
    target = jar_folder(settings.cache)
    with scratch_beside(target) as scratch:
        script = scratch / "nothing.py"
        script.write_text("")
        command: list[object] = [spark_home() / "bin" / "spark-submit", "--packages", ",".join(coordinates())]
        # A proxy's repositories or Ivy settings are the user's to give; they must reach this JVM as well.
        conf = {k: v for k, v in settings.spark_conf.items() if k.startswith("spark.jars.")}
        conf |= {"spark.jars.ivy": str(scratch / "ivy"), "spark.jars.excludes": ",".join(EXCLUDED)}
        for name, value in conf.items():
            command += ["--conf", f"{name}={value}"]
        # Ivy looks into ~/.m2 first, and a POM there without its jar makes the whole resolution fail.
        done = run([*command, script], SPARK_SUBMIT_OPTS=f'"-Duser.home={scratch}"')
        found = scratch / "ivy" / "jars"
        if done.returncode or not found.is_dir():
            raise SetupError(
                f"Spark could not resolve its jars ({', '.join(coordinates())}) from Maven Central; check the network, "
                "or name a mirror in LAKEHOUSE_SPARK__spark__jars__repositories. Its output ends with:\n"
                + last_lines(done.stdout)
            )
        put_in_place(found, target)


@contextmanager
def scratch_beside(target: Path) -> Iterator[Path]:
    """Yields a scratch directory on the target's own file system, so that the result can be renamed to ``target``."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=target.parent, ignore_cleanup_errors=True) as scratch:
        yield Path(scratch)


def put_in_place(result: Path, target: Path) -> None:
    """Renames ``result`` to ``target``. Where another set-up was faster, its result stays: it has the same content."""
    try:
        result.rename(target)
    except OSError:
        if not target.exists():
            raise


def run(command: Iterable[object], **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in Spark's environment and ``env``; the result's ``stdout`` has its whole output."""
    return subprocess.run(
        list(map(str, command)),
        env={**os.environ, **environment(), **env},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def last_lines(text: str) -> str:
    """Returns the last 30 lines of a program's output, for a message."""
    return "\n".join(text.strip().splitlines()[-30:])


def digest(parts: Iterable[str]) -> str:
    """Returns 16 hex digits that name a set-up with these parts."""
    return hashlib.sha256(json.dumps(list(parts)).encode()).hexdigest()[:16]
