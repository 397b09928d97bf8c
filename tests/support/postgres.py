"""A real PostgreSQL for tests, on a free loopback port, as an ordinary user; gone afterwards.
Nothing of Dagster or Iceberg here."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.servers import free_ports

USER = "lakehouse"
# PostgreSQL refuses to be run by root; nobody has no files of its own to lose.
UNPRIVILEGED = "nobody"
START_SECONDS = 60


@dataclass(frozen=True)
class PostgreSQL:
    """A running server whose user ``lakehouse`` may do all; loopback connections need no password."""

    port: int
    host: str = "127.0.0.1"
    database: str = "postgres"
    user: str = USER

    @property
    def variables(self) -> dict[str, str]:
        """libpq's variables by which it is reached."""
        return {"PGHOST": self.host, "PGPORT": str(self.port), "PGDATABASE": self.database, "PGUSER": self.user}


def binaries() -> Path | None:
    """The directory of initdb and postgres, the newest where there are several; None when it is not installed."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    # Debian's package keeps them off the PATH.
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]))
    return installed[-1].parent if installed else None


@contextmanager
def postgresql(kept: Path | None = None) -> Iterator[PostgreSQL]:
    """Start PostgreSQL. Expects binaries() to be there.

    kept: the folder where its database is, for good; None: it is empty, and gone afterwards.
    """
    programs = binaries()
    assert programs is not None, "PostgreSQL is not installed"
    user = UNPRIVILEGED if os.geteuid() == 0 else None
    folder = kept or Path(tempfile.mkdtemp(prefix="postgresql-"))
    folder.mkdir(parents=True, exist_ok=True)
    if user:
        shutil.chown(folder, user)
    data, log = folder / "data", folder / "postgres.log"
    (port,) = free_ports(1)
    # Durability costs time, and nothing here outlives the test.
    made = None if (data / "PG_VERSION").exists() else subprocess.run(
        [programs / "initdb", f"--pgdata={data}", f"--username={USER}", "--auth=trust", "--no-sync"],
        user=user, extra_groups=[] if user else None, cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    assert made is None or made.returncode == 0, made.stderr
    options = [f"-cport={port}", "-clisten_addresses=127.0.0.1", f"-cunix_socket_directories={folder}", "-cfsync=off"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [programs / "postgres", f"-D{data}", *options],
            user=user, extra_groups=[] if user else None, cwd=folder, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        _wait_until_ready(programs, port, process, log)
        yield PostgreSQL(port)
    finally:
        process.send_signal(signal.SIGQUIT)  # at once; connections left open do not hold it up
        process.wait(30)
        if kept is None:
            shutil.rmtree(folder, ignore_errors=True)


def _wait_until_ready(programs: Path, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    asked = [programs / "pg_isready", "--quiet", "--host=127.0.0.1", f"--port={port}"]
    while subprocess.run(asked).returncode != 0:
        assert process.poll() is None, f"PostgreSQL did not start:\n{log.read_text()}"
        assert time.monotonic() < deadline, f"PostgreSQL did not start:\n{log.read_text()}"
        time.sleep(0.05)
