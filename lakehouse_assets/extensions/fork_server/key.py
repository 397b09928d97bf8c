"""The key of a fork server: all that its Python and its JVM took over at their start. A run must have the same."""

from __future__ import annotations

import hashlib
import os
import re
import resource
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lakehouse_assets.environment.spark_setup import spark_home

TERMINALS = frozenset(
    {
        *("_", "SHLVL", "PWD", "OLDPWD", "TERM", "COLUMNS", "LINES", "WINDOWID", "COLORTERM", "PS1", "LS_COLORS"),
        *("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKE_TERMOUT", "MAKE_TERMERR"),
        *("XDG_SESSION_ID", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS"),
    }
)
"""Variables that differ between terminals, whose runs can share a JVM: it does not get them. A step has its run's."""
OF_PYTHON = ("DAGSTER_", "LAKEHOUSE_")
"""Prefixes of variables that the JVM does not get, either: Dagster's name the run; ours reach it as Spark settings."""
OF_WORKER = frozenset({"PYTHONUNBUFFERED", "TMPDIR"})
"""Variables that the launcher sets, with the same value for all workers of a home."""
FOLDERS = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
"""Variables that name folders of settings, which a JVM reads at its start."""


@dataclass(frozen=True)
class Key:
    """What was taken over at the start: a hash by name, so that no secret is written down."""

    parts: Mapping[str, str]

    def differences(self, other: Key) -> list[str]:
        """Returns the names of the parts that are not the same."""
        names = {*self.parts, *other.parts}
        return sorted(name for name in names if self.parts.get(name) != other.parts.get(name))


def key_of(env: Mapping[str, str], of_chunk: Collection[str], conf: Mapping[str, str], java: Path) -> Key:
    """Returns the key of this process for a worker.

    env: the worker's environment. of_chunk: names of variables that differ from chunk to chunk. conf: Spark's settings.
    java: Java's home.
    """
    ignored = {*TERMINALS, *OF_WORKER, *of_chunk}
    lasting = {n: v for n, v in env.items() if n not in ignored and not n.startswith(OF_PYTHON)}
    limits = [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")]
    spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("mnt", "net", "pid", "user")]
    jars = re.split("[,:]", f"{conf.get('spark.jars', '')},{conf.get('spark.driver.extraClassPath', '')}")
    folders = [*(env[name] for name in FOLDERS if env.get(name)), f"{env.get('SPARK_HOME') or spark_home()}/conf"]
    settings = [file for folder in folders for file in sorted(Path(folder).glob("*"))]
    return Key(
        {name: _hash(value) for name, value in lasting.items()}
        | {name: _hash(value) for name, value in conf.items()}
        | {
            "Python": _hash(f"{sys.executable} {sys.version} {_stat(sys.executable)}"),
            "Java": _hash(f"{java} {_stat(java / 'bin' / 'java')} {_stat(java / 'release')}"),
            "the jars": _hash(str([(jar, _stat(jar)) for jar in jars])),
            "files of settings": _hash(str([(file, _stat(file)) for file in settings])),
            "the working folder": _hash(str(Path.cwd())),
            "the limits of the shell": _hash(f"{limits} {_umask()}"),
            "the processors": _hash(f"{sorted(os.sched_getaffinity(0))} {os.nice(0)}"),
            "the container": _hash(" ".join(spaces)),
        }
    )


def _stat(path: str | Path) -> tuple[int, int, int] | None:
    with suppress(OSError):
        found = os.stat(path)
        return found.st_mtime_ns, found.st_size, found.st_ino
    return None


def _umask() -> str:
    """Reads it from /proc: os.umask() can only be asked by setting it, which other threads would notice."""
    status = Path("/proc/self/status").read_text()
    return next((line for line in status.splitlines() if line.startswith("Umask")), "")


def _hash(text: str) -> str:
    # Variables and paths may have bytes that are not UTF-8.
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]
