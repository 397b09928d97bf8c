"""What this machine offers: a Java runtime, memory, cores.
Found out without starting a JVM; nothing is installed and nothing about Spark is decided here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

JAVA_MINIMUM = 17
"""Spark 4 runs on Java 17 and later (https://spark.apache.org/docs/4.1.0/)."""


WRAPPER = Path(__file__).with_name("jvm")
"""Looks like a Java home; its ``java`` runs the one of LAKEHOUSE_JAVA_HOME (see the script)."""


class SetupError(RuntimeError):
    """Something the workers need is not on this machine; the message says how to get it."""


def java_home() -> Path:
    """The home of a Java 17 or later: LAKEHOUSE_JAVA_HOME if set, else JAVA_HOME, else the ``java`` on PATH.

    LAKEHOUSE_JAVA_HOME is what spark_runtime.environment() gives to child processes, whose JAVA_HOME is a wrapper.
    Raises SetupError, naming what was found and what to install.
    """
    # A process that was handed the wrapper without what is behind it must not run the wrapper by itself, for ever.
    usable = (v for v in ("LAKEHOUSE_JAVA_HOME", "JAVA_HOME") if os.environ.get(v, "") not in ("", str(WRAPPER)))
    if variable := next(usable, None):
        origin, home = f"{variable}={os.environ[variable]}", Path(os.environ[variable])
    elif found := shutil.which("java"):
        origin, home = f"{found} on PATH", Path(found).resolve().parent.parent
    else:
        raise SetupError(f"no Java found: JAVA_HOME is not set and no java is on PATH; {_advice()}")
    if not os.access(home / "bin" / "java", os.X_OK):
        raise SetupError(f"{origin}: there is no {home}/bin/java; {_advice()}")
    if (version := java_version(home)) < JAVA_MINIMUM:
        raise SetupError(f"{origin} is Java {version}, Spark needs {JAVA_MINIMUM} or later; {_advice()}")
    return home


def java_version(home: Path) -> int:
    """The feature version (8, 17, 21 …) of the Java at ``home``. Raises SetupError when it can't be told."""
    release = home / "release"
    text = release.read_text() if release.is_file() else ""
    match = re.search(r'^JAVA_VERSION="([^"]+)"', text, re.MULTILINE)
    if match is None:  # a bare JRE may lack the file: ask the runtime itself
        told = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True).stderr
        match = re.search(r'version "([^"]+)"', told)
    if match is None:
        raise SetupError(f"{home}/bin/java does not tell its version; {_advice()}")
    numbers = re.findall(r"\d+", match[1])
    return int(numbers[1] if numbers[0] == "1" else numbers[0])


def memory_bytes() -> int:
    """Memory this process may use: the machine's, or its control group's limit where that is lower."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *_cgroup_limits()])


def cores() -> int:
    """Processors this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _cgroup_limits(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> list[int]:
    """The memory limits of this process's control group and of all groups around it (versions 1 and 2)."""
    if not membership.is_file():
        return []
    limits = []
    for line in membership.read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            base, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        own = base / group.lstrip("/")
        around = [own, *(p for p in own.parents if p == base or base in p.parents)]
        limits += [int(text) for p in around if (text := _read(p / name)).isdecimal()]
    return limits


def _read(path: Path) -> str:
    return path.read_text().strip() if path.is_file() else ""


def _advice() -> str:
    package = f"openjdk-{JAVA_MINIMUM}-jre-headless"
    return f"install a Java {JAVA_MINIMUM} or later (on Debian: {package}) or point JAVA_HOME to one"
