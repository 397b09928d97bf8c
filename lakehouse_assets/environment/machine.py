"""This machine's Java, cores and memory; this package's sources."""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from http.client import HTTPException
from importlib.machinery import ModuleSpec
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

JAVA_MINIMUM = 17
"""For Spark 4 (https://spark.apache.org/docs/4.1.0/)."""
WRAPPER = Path(__file__).with_name("jvm")
"""Looks like a Java home; its ``java`` runs that of LAKEHOUSE_JAVA_HOME."""
PR_SET_PDEATHSIG = 1
"""The option of prctl(2) for a signal at the parent's end."""
METADATA = "ECS_CONTAINER_METADATA_URI_V4"
METADATA_TIMEOUT_SECONDS = 1.0
# Seconds between tries: the documents may not be there yet when a container starts.
METADATA_WAITS = (0.2, 0.5)
MIB = 2**20
CGROUPS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


class SetupError(RuntimeError):
    """Workers lack something here; the message says how to get it."""


def scratch(home: Path) -> Path:
    """Returns ``<home>/tmp``, created if missing.

    There the CLI removes files of killed processes; the system's folder would keep them until a restart.
    """
    folder = home / "tmp"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def java_home() -> Path:
    """Finds a Java 17 or later: LAKEHOUSE_JAVA_HOME, else JAVA_HOME, else from PATH.

    In child processes JAVA_HOME is a wrapper. Raises SetupError, naming what was found and what to install.
    """
    # With the wrapper as JAVA_HOME, but no LAKEHOUSE_JAVA_HOME, the wrapper would run itself.
    usable = (v for v in ("LAKEHOUSE_JAVA_HOME", "JAVA_HOME") if os.environ.get(v, "") not in ("", str(WRAPPER)))
    if variable := next(usable, None):
        origin, home = f"{variable}={os.environ[variable]}", Path(os.environ[variable])
    elif found := shutil.which("java"):
        origin, home = f"{found} on PATH", Path(found).resolve().parent.parent
    else:
        raise SetupError(f"no Java found: JAVA_HOME is not set and no java is on PATH; {_advice()}")
    if not os.access(home / "bin" / "java", os.X_OK):
        raise SetupError(f"{origin}: {home}/bin/java does not exist or is not executable; {_advice()}")
    if (version := java_version(home)) < JAVA_MINIMUM:
        raise SetupError(f"{origin} is Java {version}, but Spark needs {JAVA_MINIMUM} or later; {_advice()}")
    return home


def java_version(home: Path) -> int:
    """Finds a Java's feature version (8, 17, 21 …). Raises SetupError if it is unknown."""
    release = home / "release"
    text = release.read_text() if release.is_file() else ""
    match = re.search(r'^JAVA_VERSION="([^"]+)"', text, re.MULTILINE)
    if match is None:  # a bare JRE may lack the file
        output = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True).stderr
        match = re.search(r'version "([^"]+)"', output)
    if match is None:
        raise SetupError(f"{home}/bin/java -version shows no version; {_advice()}")
    numbers = re.findall(r"\d+", match[1])
    # Java 8 calls itself 1.8.
    return int(numbers[1] if numbers[0] == "1" else numbers[0])


def command(arguments: str, folder: Path | None = None) -> str:
    """Returns what a person types for a command in a folder."""
    script = Path(sys.executable).with_name("lakehouse")
    if not script.exists():
        return f"{sys.executable} -m lakehouse_assets.cli {arguments}"
    found = shutil.which("lakehouse")
    if found is not None and os.path.samefile(found, script):
        return f"lakehouse {arguments}"
    here = folder or Path.cwd()
    return f"{script.relative_to(here) if script.is_relative_to(here) else script} {arguments}"


def cache_folder(env: Mapping[str, str] = os.environ) -> Path:
    """Returns LAKEHOUSE_CACHE, absolute."""
    folder = env.get("LAKEHOUSE_CACHE") or f"{env.get('XDG_CACHE_HOME') or '~/.cache'}/lakehouse-assets"
    return Path(folder).expanduser().absolute()


def memory_bytes() -> int:
    """Returns the least of the machine's, the control groups' and the ECS task's memory."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *_cgroup_limits(), *_task_limits()[1]])


def available_bytes() -> int:
    """Returns the memory that new work could have: of the machine, and within the control groups' limits."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    machine = next(int(size) * 1024 for name, size, *_ in lines if name == "MemAvailable:")
    return min([machine, *(limit - used for limit, used in _cgroup_memory())])


def resident_bytes(pid: int) -> int:
    """Returns a process's memory in RAM; 0 if it has ended."""
    # statm's second number is the pages in RAM.
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def signal_at_parents_end(parent: int, number: signal.Signals) -> None:
    """Has the kernel send this process a signal when its parent ends, also if it is killed (Linux).

    parent: its process id. If it has ended already, this process does too.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(os.EX_TEMPFAIL)


def children_of(pid: int) -> list[int]:
    """Returns the processes that a process has started; none if it has ended."""
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, children.read_text().split())
    return found


def cores() -> int:
    """Returns the usable processors, limited by the ECS task."""
    available = len(os.sched_getaffinity(0))
    return min(available, task_cores() or available)


def task_cores() -> int | None:
    """Returns the ECS task's processors, rounded up; None without a limit."""
    return _task_limits()[0]


def _task_limits() -> tuple[int | None, tuple[int, ...]]:
    """Returns ECS's limits: processors, and bytes of memory.

    On Fargate no control group shows them, and the machine is larger than the task.
    """
    return _metadata_limits(os.environ[METADATA]) if os.environ.get(METADATA) else (None, ())


@cache
def _metadata_limits(address: str) -> tuple[int | None, tuple[int, ...]]:
    # https://docs.aws.amazon.com/AmazonECS/latest/developerguide/task-metadata-endpoint-v4-fargate-response.html: a
    # task's CPU is in vCPUs (a container's is a share, not a limit), memory in MiB; 0 or missing without a limit.
    try:
        task, container = (_document(address + path).get("Limits") or {} for path in ("/task", ""))
        memory = tuple(int(limits["Memory"]) * MIB for limits in (task, container) if limits.get("Memory"))
        return math.ceil(task.get("CPU", 0)) or None, memory
    except (OSError, HTTPException, ValueError) as error:
        logger.warning("can't read the task's size from %s=%s, using the machine's: %s", METADATA, address, error)
        return None, ()


def _document(address: str) -> dict[str, Any]:
    from urllib.request import ProxyHandler, build_opener

    from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_chain, wait_fixed

    opener = build_opener(ProxyHandler({}))  # no proxy: the address is the task's own

    for attempt in Retrying(
        retry=retry_if_exception_type((OSError, HTTPException)),
        wait=wait_chain(*map(wait_fixed, METADATA_WAITS)),
        stop=stop_after_attempt(1 + len(METADATA_WAITS)),
        reraise=True,
    ):
        with attempt, opener.open(address, timeout=METADATA_TIMEOUT_SECONDS) as answer:
            document: dict[str, Any] = json.load(answer)
    return document


def _cgroup_limits(root: Path = CGROUPS, membership: Path = MEMBERSHIP) -> list[int]:
    return [limit for limit, _ in _cgroup_memory(root, membership)]


def _cgroup_memory(root: Path = CGROUPS, membership: Path = MEMBERSHIP) -> list[tuple[int, int]]:
    """Returns each limit and its use, in bytes: of the control groups and their parents, in versions 1 and 2."""
    if not membership.is_file():
        return []
    found = []
    for line in membership.read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        # Only version 2 has a group without controllers' names.
        if controllers == "":
            base, limit, used = root, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            base, limit, used = root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        own = base / group.lstrip("/")
        groups = [folder for folder in (own, *own.parents) if folder.is_relative_to(base)]
        texts = [(_read(folder / limit), _read(folder / used)) for folder in groups]
        # A group without a limit has the word max, or lacks the file.
        found += [(int(most), int(now or 0)) for most, now in texts if most.isdecimal()]
    return found


def _read(path: Path) -> str:
    return path.read_text().strip() if path.is_file() else ""


def _advice() -> str:
    package = f"openjdk-{JAVA_MINIMUM}-jre-headless"
    return f"install a Java {JAVA_MINIMUM} or later (on Debian: {package}) or point JAVA_HOME to one"


LIBRARY = "lakehouse_assets"
INSTALLED = ("site-packages", "dist-packages")
VERSION = "0.2.0"
"""For pyproject.toml and for workers: zips on Python's path have no metadata."""


def sources(packages: Iterable[str] = ()) -> Iterator[tuple[str, bytes]]:
    """Yields the library's and packages' files, as (path on Python's path, content), in order.

    packages: top-level packages or single-file modules. Raises ImportError for an unknown one.
    """
    for package in sorted({LIBRARY, *packages}):
        if (spec := find_spec(package)) is None:
            raise ImportError(f"there is no package {package}")
        if spec.submodule_search_locations is None:
            file = Path(str(spec.origin))
            yield file.name, file.read_bytes()
        for folder in spec.submodule_search_locations or ():
            yield from _files(Path(folder), package)


def project_folders(specs: Iterable[ModuleSpec | None]) -> list[str]:
    """Returns the distinct folders or zips of modules that are not installed."""
    found = (folder for spec in specs if spec for folder in _folders(spec))
    return [folder for folder in dict.fromkeys(found) if os.path.basename(folder) not in INSTALLED]


def _folders(spec: ModuleSpec) -> Iterator[str]:
    places = spec.submodule_search_locations or ([str(spec.origin)] if spec.has_location else [])
    yield from map(os.path.dirname, places)


@cache
def installed_with(module: str) -> frozenset[str]:
    """Returns all top-level modules of the distributions that have this one; none if it is not installed."""
    if project_folders([find_spec(module)]):  # looking through all distributions takes 0.1 s
        return frozenset()
    owners = packages_distributions()
    return frozenset(name for name, names in owners.items() if not {*names}.isdisjoint(owners.get(module, ())))


@cache
def content_hash(packages: tuple[str, ...] = ()) -> str:
    """Returns 16 hex digits over the names and contents of sources()."""
    digest = hashlib.sha256()
    for name, content in sources(packages):
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def _files(folder: Path, name: str) -> Iterator[tuple[str, bytes]]:
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and entry.name != "__pycache__":
            yield from _files(entry, f"{name}/{entry.name}")
        elif entry.is_file():
            yield f"{name}/{entry.name}", entry.read_bytes()
