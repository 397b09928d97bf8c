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
from typing import IO

from tests.support.servers import free_ports

USER = "lakehouse"
# PostgreSQL refuses to be run by root; nobody has no files of its own to lose.
UNPRIVILEGED = "nobody"
START_SECONDS = 60


@dataclass
class PostgreSQL:
    """A server whose user ``lakehouse`` may do all; loopback connections need no password. folder: where its database
    and its log are."""

    port: int
    folder: Path
    host: str = "127.0.0.1"
    database: str = "postgres"
    user: str = USER
    process: subprocess.Popen[bytes] | None = None

    @property
    def variables(self) -> dict[str, str]:
        """libpq's variables by which it is reached."""
        return {"PGHOST": self.host, "PGPORT": str(self.port), "PGDATABASE": self.database, "PGUSER": self.user}

    def start(self) -> None:
        """Until it can be asked."""
        # Durability costs time, and nothing here outlives the test: what a killed process has written is there still.
        options = [f"-cport={self.port}", "-clisten_addresses=127.0.0.1", "-cfsync=off"]
        options += ["-cmax_prepared_transactions=2"]
        options += [f"-cunix_socket_directories={self.folder}"]
        deadline, log = time.monotonic() + START_SECONDS, self.folder / "postgres.log"
        asked = [_program("pg_isready"), "--quiet", "--host=127.0.0.1", f"--port={self.port}"]
        while subprocess.run(asked).returncode != 0:
            # Behind a server that was killed, those who serve its clients may be there for a moment.
            if self.process is None or self.process.poll() is not None:
                with log.open("ab") as output:
                    self.process = _popen(self.folder, "postgres", f"-D{self.folder / 'data'}", *options, output=output)
            assert time.monotonic() < deadline, f"PostgreSQL did not start:\n{log.read_text()}"
            time.sleep(0.05)

    def end(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """At once; connections left open do not hold it up. SIGKILL: nobody hears of it."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(30)
            self.process = None


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
    assert binaries() is not None, "PostgreSQL is not installed"
    folder = kept or Path(tempfile.mkdtemp(prefix="postgresql-"))
    folder.mkdir(parents=True, exist_ok=True)
    if _user():
        shutil.chown(folder, _user())
    if not (folder / "data" / "PG_VERSION").exists():
        options = [f"--pgdata={folder / 'data'}", f"--username={USER}", "--auth=trust", "--no-sync"]
        with (folder / "initdb.log").open("wb") as output:
            made = _popen(folder, "initdb", *options, output=output).wait()
        assert made == 0, (folder / "initdb.log").read_text()
    (port,) = free_ports(1)
    server = PostgreSQL(port, folder)
    try:
        server.start()
        yield server
    finally:
        server.end()
        if kept is None:
            shutil.rmtree(folder, ignore_errors=True)


def _user() -> str | None:
    return UNPRIVILEGED if os.geteuid() == 0 else None


def _program(name: str) -> Path:
    found = binaries()
    assert found is not None
    return found / name


def _popen(folder: Path, name: str, *options: str, output: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [_program(name), *options],
        user=_user(), extra_groups=[] if _user() else None, cwd=folder, stdout=output, stderr=output,
    )  # fmt: skip
