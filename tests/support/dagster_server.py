"""The Dagster UI and daemon as a person starts them, in a home of their own, and the questions its pages ask (GraphQL).
No tests here; which code location is served, and what is asked of it, is the caller's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.support.projects import make_project
from tests.support.servers import free_ports

ROOT = Path(__file__).parent.parent
POOL = "lake_workers"
START_SECONDS = 300
# `cli ui` gives its services 15 s.
END_SECONDS = 30
ACTIVE = ("NOT_STARTED", "QUEUED", "STARTING", "STARTED", "CANCELING")
T = TypeVar("T")


@dataclass(frozen=True)
class Pool:
    """The pool ``lake_workers`` as the UI shows it. claimed, waiting: (run id, step key)."""

    limit: int
    claimed: tuple[tuple[str, str], ...]
    waiting: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class DagsterServer:
    """A running ``cli ui``. location: the code location it serves."""

    pid: int
    url: str
    home: Path
    location: str

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """The ``data`` of a GraphQL answer; an error of the API is raised.

        A query (no mutation) that meets an error of the server is asked once more, as the UI's pages do; pytest's
        warnings show that error.
        """
        request = urllib.request.Request(
            f"{self.url}/graphql",
            json.dumps({"query": query, "variables": variables}).encode(),
            {"Content-Type": "application/json"},
        )
        answer = _answer(request, again=not query.startswith("mutation"))
        if "errors" in answer:
            raise RuntimeError(json.dumps(answer["errors"], indent=1))
        return answer["data"]

    def launch(self, asset: Sequence[str], first: str = "", last: str = "") -> str:
        """Ask for one run of an asset, of a range of its partitions; returns the run's id."""
        span = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last or first}
        answer = self.ask(
            """mutation($params: ExecutionParams!) {
                 launchRun(executionParams: $params) {
                   __typename ... on LaunchRunSuccess { run { runId } } ... on Error { message }
                 } }""",
            params={
                "selector": {
                    "repositoryName": "__repository__",
                    "repositoryLocationName": self.location,
                    "jobName": "__ASSET_JOB",
                    "assetSelection": [{"path": list(asset)}],
                },
                "executionMetadata": {"tags": [{"key": k, "value": v} for k, v in span.items() if v]},
            },
        )["launchRun"]
        assert answer["__typename"] == "LaunchRunSuccess", answer
        return answer["run"]["runId"]

    def re_execute(self, run: str) -> str:
        """What *Re-execute from failure* does; returns the new run's id."""
        answer = self.ask(
            """mutation($params: ReexecutionParams!) {
                 launchRunReexecution(reexecutionParams: $params) {
                   __typename ... on LaunchRunSuccess { run { runId } } ... on Error { message }
                 } }""",
            params={"parentRunId": run, "strategy": "FROM_FAILURE", "useParentRunTags": True},
        )["launchRunReexecution"]
        assert answer["__typename"] == "LaunchRunSuccess", answer
        return answer["run"]["runId"]

    def backfill(self, asset: Sequence[str], keys: Sequence[str]) -> str:
        """Ask for a backfill as the *Materialize* dialog does; returns its id."""
        answer = self.ask(
            """mutation($params: LaunchBackfillParams!) {
                 launchPartitionBackfill(backfillParams: $params) {
                   __typename ... on LaunchBackfillSuccess { backfillId } ... on Error { message }
                 } }""",
            params={"assetSelection": [{"path": list(asset)}], "partitionNames": list(keys)},
        )["launchPartitionBackfill"]
        assert answer["__typename"] == "LaunchBackfillSuccess", answer
        return answer["backfillId"]

    def backfilled(self, backfill: str) -> list[dict[str, Any]] | None:
        """The runs (``runId``, ``status``, ``tags`` by key) of a backfill that ended; None before its end."""
        answer = self.ask(
            """query($id: String!) { partitionBackfillOrError(backfillId: $id) {
                 ... on PartitionBackfill { status error { message } runs { runId status tags { key value } } }
                 ... on Error { message } } }""",
            id=backfill,
        )["partitionBackfillOrError"]
        if answer["status"] in ("REQUESTED", "CANCELING", "FAILING"):
            return None
        assert answer["status"] == "COMPLETED_SUCCESS", answer
        return [run | {"tags": {tag["key"]: tag["value"] for tag in run["tags"]}} for run in answer["runs"]]

    def report(self, asset: Sequence[str], key: str) -> None:
        """What *Report materialization events* does for a partition."""
        answer = self.ask(
            """mutation($params: ReportRunlessAssetEventsParams!) {
                 reportRunlessAssetEvents(eventParams: $params) {
                   __typename ... on PythonError { message } ... on UnauthorizedError { message } } }""",
            params={"eventType": "ASSET_MATERIALIZATION", "assetKey": {"path": list(asset)}, "partitionKeys": [key]},
        )["reportRunlessAssetEvents"]
        assert answer["__typename"] == "ReportRunlessAssetEventsSuccess", answer

    def runs_of(self, asset: Sequence[str]) -> list[dict[str, Any]]:
        """The runs (``runId``, ``status``, ``tags`` by key) of an asset's own, oldest first."""
        query = """{ runsOrError { ... on Runs { results { runId status assetSelection { path } tags { key value } } }
                                   ... on Error { message } } }"""
        found = self.ask(query)["runsOrError"]["results"]
        own = [run for run in reversed(found) if run["assetSelection"] == [{"path": list(asset)}]]
        return [run | {"tags": {tag["key"]: tag["value"] for tag in run["tags"]}} for run in own]

    def ticks(self, sensor: str) -> int:
        """How many times a sensor was evaluated; a tick that failed fails here."""
        query = """query($selector: SensorSelector!) { sensorOrError(sensorSelector: $selector) {
                     ... on Sensor { sensorState { ticks { status error { message } } } }
                     ... on Error { message } } }"""
        selector = {"repositoryName": "__repository__", "repositoryLocationName": self.location, "sensorName": sensor}
        ticks = self.ask(query, selector=selector)["sensorOrError"]["sensorState"]["ticks"]
        assert not [tick for tick in ticks if tick["status"] == "FAILURE"], ticks
        return len([tick for tick in ticks if tick["status"] in ("SUCCESS", "SKIPPED")])

    def terminate(self, run: str) -> None:
        """What the *Terminate* button does."""
        answer = self.ask(
            """mutation($run: String!) { terminateRun(runId: $run) {
                 __typename ... on TerminateRunFailure { message } ... on Error { message } } }""",
            run=run,
        )["terminateRun"]
        assert answer["__typename"] == "TerminateRunSuccess", answer

    def status(self, run: str) -> str:
        return self.run(run, "status")["status"]

    def ended(self, run: str) -> str | None:
        """The status of a run that ended; None before its end."""
        status = self.status(run)
        return None if status in ACTIVE else status

    def output(self, run: str) -> str:
        """What a run's step and its workers have printed so far, as its page's *stdout* shows it."""
        events = self.ask(
            """query($run: ID!) { logsForRun(runId: $run) { ... on EventConnection {
                 events { ... on LogsCapturedEvent { fileKey } } } } }""",
            run=run,
        )["logsForRun"].get("events", ())
        keys = [event["fileKey"] for event in events if event.get("fileKey")]
        logs = [self.run(run, f'capturedLogs(fileKey: "{key}") {{ stdout }}')["capturedLogs"] for key in keys]
        return "".join(log["stdout"] or "" for log in logs)

    def messages(self, run: str) -> list[str]:
        """What a run and its steps have logged so far."""
        events = self.ask(
            """query($run: ID!) { logsForRun(runId: $run) { ... on EventConnection {
                 events { ... on LogMessageEvent { message } } } } }""",
            run=run,
        )["logsForRun"]["events"]
        return [event["message"] for event in events if "message" in event]

    def pool(self) -> Pool:
        answer = self.ask(
            """query($pool: String!) { instance { concurrencyLimit(concurrencyKey: $pool) {
                 limit claimedSlots { runId stepKey } pendingSteps { runId stepKey assignedTimestamp } } } }""",
            pool=POOL,
        )["instance"]["concurrencyLimit"]
        waiting = [step for step in answer["pendingSteps"] if step["assignedTimestamp"] is None]
        return Pool(
            answer["limit"],
            tuple((slot["runId"], slot["stepKey"]) for slot in answer["claimedSlots"]),
            tuple((step["runId"], step["stepKey"]) for step in waiting),
        )

    def set_limit(self, limit: int) -> None:
        """What the concurrency page does."""
        mutation = (
            "mutation($pool: String!, $limit: Int!) { setConcurrencyLimit(concurrencyKey: $pool, limit: $limit) }"
        )
        assert self.ask(mutation, pool=POOL, limit=limit)["setConcurrencyLimit"]

    def run(self, run: str, fields: str) -> dict[str, Any]:
        """The fields asked for (GraphQL) of a run."""
        query = (
            f"query($run: ID!) {{ runOrError(runId: $run) {{ ... on Run {{ {fields} }} ... on Error {{ message }} }} }}"
        )
        return self.ask(query, run=run)["runOrError"]


def _answer(request: urllib.request.Request, again: bool) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        told = error.read().decode(errors="replace")
        if error.code != 500 or not again:
            error.add_note(told)
            raise
        warnings.warn(f"asked again, as the server answered {error.code}: {told}", stacklevel=3)
    time.sleep(1)
    return _answer(request, again=False)


def until(condition: Callable[[], T | None], seconds: float = 300, state: Callable[[], object] = lambda: "") -> T:
    """The first true answer of ``condition``. Fails when there is none in time. state: what the
    message of the failure shows."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"waited {seconds} s in vain; {state()}"
        time.sleep(0.1)
    return answer


@contextmanager
def dagster_server(home: Path, module: str | None = None, **environment: str) -> Iterator[DagsterServer]:
    """Start ``cli ui`` on a free port of 127.0.0.1; ends it and checks that nothing it started is left.

    module: a code location of the test's own, in place of the project's.
    """
    (port,) = free_ports(1)
    home.mkdir(parents=True, exist_ok=True)
    log = home / "ui.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "lakehouse_assets.cli", "ui", "--port", str(port)],
            cwd=make_project(home / "project", module) if module else ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**plain_environment(), "PYTHONPATH": str(ROOT), "LAKEHOUSE_HOME": str(home), **environment},
            start_new_session=True,
        )
    try:
        server = DagsterServer(process.pid, f"http://127.0.0.1:{port}", home, module or "lakehouse_assets")
        until(lambda: _is_ready(server, process, log), START_SECONDS, log.read_text)
        urllib.request.urlopen(
            f"{server.url}/server_info", timeout=60
        ).close()  # it answers once its address is printed
        until(lambda: _serves(server, process, log), START_SECONDS, log.read_text)
        yield server
    finally:
        left = _end(process, home)
    assert not left, f"left over by the server: {left}\n{log.read_text()}"


def processes(home: Path) -> dict[int, str]:
    """Every live process that has this LAKEHOUSE_HOME: pid → command line."""
    mark = f"LAKEHOUSE_HOME={home}".encode()
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):  # it ended meanwhile, or is another user's
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return found


def plain_environment() -> dict[str, str]:
    """This process's, without what configures a lake. The machine's cache stays, and that no worker does."""
    foreign = ("PYICEBERG_", "LAKEHOUSE_")
    kept = ("LAKEHOUSE_CACHE", "LAKEHOUSE_WORKER_IDLE")
    return {name: value for name, value in os.environ.items() if name in kept or not name.startswith(foreign)}


def _is_ready(server: DagsterServer, process: subprocess.Popen[bytes], log: Path) -> bool:
    assert process.poll() is None, f"cli ui did not start:\n{log.read_text()}"
    return f"Dagster UI: {server.url}" in log.read_text()


def _serves(server: DagsterServer, process: subprocess.Popen[bytes], log: Path) -> bool:
    assert process.poll() is None, f"cli ui did not start:\n{log.read_text()}"
    query = "{ workspaceOrError { ... on Workspace { locationEntries { locationOrLoadError { __typename } } } } }"
    try:
        entries = server.ask(query)["workspaceOrError"]["locationEntries"]
    except OSError:
        return False
    loaded = [(entry["locationOrLoadError"] or {}).get("__typename") for entry in entries]
    assert "PythonError" not in loaded, f"the code location does not load:\n{log.read_text()}"
    return bool(loaded) and all(loaded)


def _end(process: subprocess.Popen[bytes], home: Path) -> dict[int, str]:
    """End the server as `kill` does; returns what was left, which is killed."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
    deadline = time.monotonic() + 5
    while (left := processes(home)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    return left
