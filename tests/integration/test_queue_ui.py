"""The queue under `cli ui`, as `make ui QUEUE=1` serves it: what is sent becomes rows, also once its code is reloaded.
On services that are restarted as in production it is in test_queue_daemon.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import read_settings
from tests.support.dagster_server import DagsterServer, dagster_server, until
from tests.support.fakes.sqs_service import FakeSqs
from tests.support.queue_lake import DEAD, QUEUE, sqs_on_loopback

FIRST = ("demo", "first")


def kill_code_server(server: DagsterServer) -> None:
    """The process that has loaded the code, below the proxy of `dagster dev`."""
    pattern = f"dagster api grpc .*{server.home}"
    (pid,) = subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True, check=True).stdout.split()
    os.kill(int(pid), signal.SIGKILL)


def reload(server: DagsterServer) -> None:
    """What the button *Reload* of the code location does."""
    server.ask(
        "mutation($name: String!) { reloadRepositoryLocation(repositoryLocationName: $name) { __typename } }",
        name=server.location,
    )


@pytest.mark.long(
    "Starts the UI and the daemon and kills the code's process; test_queue.py has the same ticks in one process."
)
@pytest.mark.server
def test_messages_become_rows_also_after_the_code_was_killed_and_reloaded(tmp_path: Path) -> None:
    fake = FakeSqs(QUEUE, DEAD)

    def send(day: str) -> None:
        body = json.dumps({"table": "demo.first", "partitions": [day]})
        fake.send_message(QueueUrl=fake.url(QUEUE), MessageBody=body)

    def succeeded(number: int) -> bool:
        return len([run for run in server.runs_of(FIRST) if run["status"] == "SUCCESS"]) == number

    with (
        sqs_on_loopback(fake) as (_, environment),
        dagster_server(tmp_path / "home", "tests.support.queue_location", **environment) as server,
    ):
        send("2024-01-01")
        until(lambda: succeeded(1))
        kill_code_server(server)
        reload(server)
        send("2024-01-02")
        until(lambda: succeeded(2))
        rows = load_lake(read_settings({"LAKEHOUSE_HOME": str(server.home)})).load_table("demo.first").scan().to_arrow()
    assert sorted({str(day) for day in rows["day"].to_pylist()}) == ["2024-01-01", "2024-01-02"]
    assert rows.num_rows == 6
    assert not fake.queues[QUEUE].messages
