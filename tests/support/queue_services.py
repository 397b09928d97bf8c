"""The code server and the daemon around tests/support/queue_location.py, each started again when it dies, as ECS does.
What is sent, and when something is killed, is the caller's."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dagster as dg

from lakehouse_assets.cli.home import EVENT_BATCH, INSTANCE
from lakehouse_assets.cli.instance import tidy
from lakehouse_assets.drive.liveness import ACTIVE, reap, start_time
from lakehouse_assets.environment.process_locks import locks_of
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.extensions.queue.hook import inbox_of
from lakehouse_assets.extensions.queue.inbox import Item
from lakehouse_assets.run.in_flight import UNFINISHED
from tests.conftest import ROOT
from tests.support.dagster_server import plain_environment, processes
from tests.support.fakes.sqs_service import FakeSqs
from tests.support.fakes.wire import Service
from tests.support.faults import TINY, FaultyLake, FaultyLakehouse
from tests.support.queue_lake import DEAD, QUEUE, dead_letters, sqs_on_loopback
from tests.support.servers import free_ports

HOST = "127.0.0.1"
MODULE = "tests.support.queue_location"
LOOK_SECONDS, REAP_SECONDS, END_SECONDS = 0.1, 2.0, 20.0


class Kind(StrEnum):
    """What can be killed."""

    SENSOR = "sensor"  # the code server, in which the sensor's ticks run
    DAEMON = "daemon"
    RUN = "run"
    WORKER = "worker"


@dataclass
class Program:
    """A service's process. may_start: whether what it depends on is there."""

    command: Sequence[str]
    env: dict[str, str]
    log: Path
    may_start: Callable[[], bool] = lambda: True
    process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process and self.process.poll() is None else None

    def keep_up(self) -> None:
        if self.pid is None and self.may_start():
            with self.log.open("ab") as output:
                self.process = subprocess.Popen(
                    self.command,
                    cwd=ROOT,
                    env=self.env,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )

    def end(self) -> None:
        if self.process:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(END_SECONDS)


@dataclass
class QueueServices:
    """The running services, the queue that they serve, and what they write. killed: how many of each kind."""

    lake: FaultyLake
    fake: FakeSqs
    service: Service
    code: Program
    daemon: Program
    killed: Counter[Kind] = field(default_factory=Counter)

    # What is sent and found

    def send(self, *bodies: str | dict[str, Any]) -> None:
        with self.service._lock:
            for body in bodies:
                text = body if isinstance(body, str) else json.dumps(body)
                self.fake.send_message(QueueUrl=self.fake.url(QUEUE), MessageBody=text)

    def hand_out_again(self) -> None:
        """What was received and not deleted comes again, as it does two minutes later."""
        with self.service._lock:
            for message in self.fake.queues[QUEUE].messages.values():
                message.visible = message.sent

    def dead(self) -> list[tuple[str, str]]:
        return dead_letters(self.fake)

    def waiting(self) -> dict[str, Item]:
        """What the inbox holds."""
        return inbox_of(FaultyLakehouse(self.lake.settings)).waiting()

    def snapshots(self) -> int:
        """Commits of all tables by now."""
        catalog = FaultyLakehouse(self.lake.settings).catalog()
        names = catalog.list_tables("demo") if catalog.namespace_exists("demo") else []
        return sum(len(catalog.load_table(name).snapshots()) for name in names)

    def is_settled(self) -> bool:
        """Whether nothing waits anywhere: in the queue, in the inbox, in Dagster."""
        if self.fake.queues[QUEUE].messages or self.waiting():
            return False
        return not self.lake.instance.get_runs(dg.RunsFilter(statuses=UNFINISHED), limit=1)

    def state(self) -> str:
        """For a person who wonders why it does not settle."""
        runs = Counter(run.status.value for run in self.lake.instance.get_runs())
        logs = "\n".join(one.log.read_text()[-3000:] for one in (self.code, self.daemon) if one.log.exists())
        waiting = len(self.waiting())
        return (
            f"{len(self.fake.queues[QUEUE].messages)} in the queue, {waiting} in the inbox, runs {dict(runs)}\n{logs}"
        )

    # What dies

    def pids(self, kind: Kind) -> list[int]:
        """Of what lives of a kind."""
        match kind:
            case Kind.RUN:
                runs = self.lake.instance.get_runs(dg.RunsFilter(statuses=ACTIVE))
                locks = locks_of(self.lake.instance.run_storage)
                pids = [int(words.split()[1]) for run in runs if (words := locks.process(run.run_id))]
                return [pid for pid in pids if start_time(pid)]
            case Kind.WORKER:
                return [pid for pid, command in processes(self.lake.settings.home).items() if TINY in command]
        pid = (self.code if kind is Kind.SENSOR else self.daemon).pid
        return [] if pid is None else [pid]

    def kill(self, kind: Kind) -> bool:
        """By SIGKILL, the first of its kind; whether there was one."""
        for pid in self.pids(kind):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.killed[kind] += 1
                return True
        return False


@contextmanager
def queue_services(home: Path, module: str = MODULE, **env: str) -> Iterator[QueueServices]:
    """Services with a LAKEHOUSE_HOME of their own; at the end nothing of them is left. env: for all of them."""
    for folder in (home, home / "dagster", home / "tmp"):
        folder.mkdir(parents=True, exist_ok=True)
    (home / "dagster" / "dagster.yaml").symlink_to(INSTANCE)
    with ExitStack() as stack:
        fake = FakeSqs(QUEUE, DEAD)
        service, of_queue = stack.enter_context(sqs_on_loopback(fake))
        environment = _environment(home, of_queue | env)
        settings = read_settings(environment)
        # lakehouse_assets/environment/event_log.py looks for it there.
        stack.enter_context(patch.dict(os.environ, {"DAGSTER_HOME": environment["DAGSTER_HOME"]}))
        instance = stack.enter_context(dg.DagsterInstance.get())
        tidy(instance, settings)  # makes the databases, which two processes could not do at once
        services = QueueServices(FaultyLake(settings, instance), fake, service, *_programs(home, module, environment))
        try:
            with _supervised(services):
                yield services
        finally:
            left = _end(services)
    assert not left, f"left over by the services: {left}"


def _environment(home: Path, more: dict[str, str]) -> dict[str, str]:
    own = {"LAKEHOUSE_HOME": str(home), "DAGSTER_HOME": str(home / "dagster"), "PYTHONPATH": str(ROOT)}
    own |= {"LAKEHOUSE_MAX_WORKERS": "4", "DAGSTER_EVENT_BATCH_SIZE": EVENT_BATCH}
    return {**plain_environment(), **own, **more}


def _programs(home: Path, module: str, env: dict[str, str]) -> tuple[Program, Program]:
    """The daemon is started once the code server answers, as by a ``dependsOn`` of ECS: else it looks again after a
    minute only."""
    (port,) = free_ports(1)
    workspace = home / "workspace.yaml"
    workspace.write_text(f"load_from: [{{grpc_server: {{host: {HOST}, port: {port}, location_name: queue}}}}]")
    dagster = [sys.executable, "-m", "dagster"]
    code = Program([*dagster, "api", "grpc", "-m", module, "-h", HOST, "-p", str(port)], env, home / "code.log")
    run = [sys.executable, "-m", "dagster._daemon", "run", "-w", str(workspace)]
    return code, Program(run, env, home / "daemon.log", lambda: _answers(port))


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False


@contextmanager
def _supervised(services: QueueServices) -> Iterator[None]:
    """What dies is started again, and runs whose process is gone are failed."""
    ended = threading.Event()

    def watch() -> None:
        next_reap = 0.0
        while not ended.wait(LOOK_SECONDS):
            for program in (services.code, services.daemon):
                program.keep_up()
            if time.monotonic() >= next_reap:
                with suppress(Exception):  # such as a locked database; the next round tries again
                    reap(services.lake.instance)
                next_reap = time.monotonic() + REAP_SECONDS

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _end(services: QueueServices) -> dict[int, str]:
    """As ECS ends services; returns what is left then, which is killed."""
    for program in (services.daemon, services.code):
        program.end()
    home = services.lake.settings.home
    deadline = time.monotonic() + END_SECONDS
    while (left := processes(home)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left
