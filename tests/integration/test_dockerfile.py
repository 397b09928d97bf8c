"""The image's own steps run for real, without Docker (see image.py), and what a container of it then can and can't do.
Minutes and 6 GB of disk: only with LAKEHOUSE_TEST_IMAGE=1, which `make test-image` sets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakehouse_assets.environment.machine import content_hash
from lakehouse_assets.environment.settings import read_settings
from tests.support.dagster_server import until
from tests.support.image import Builder, Image, end, first_process, missing_tools
from tests.support.production import RunTasks, surroundings
from tests.support.servers import SeaweedFS, free_ports

pytestmark = [
    pytest.mark.server,
    pytest.mark.spark,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not os.environ.get("LAKEHOUSE_TEST_IMAGE"), reason="takes minutes: make test-image"),
]
ROOT = Path(__file__).parents[2]
HOME = "/var/lib/lakehouse"
UID = 10001
# What has no place in an image that runs code others wrote.
TOOLS = ("uv", "uvx", "pip", "pip3", "gcc", "cc", "c++", "make", "javac", "git", "curl", "wget")
WRITABLE = "find /opt/lakehouse /usr /etc -writable ! -type l 2>/dev/null || true"
ARCHIVE = """
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.environment.spark_setup import class_data_archive
print(class_data_archive(read_settings()))
"""
ROWS = """
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import read_settings
print("rows:", load_lake(read_settings()).load_table("nyc.airlines").scan().to_arrow().num_rows)
"""
SERVED = """
dagster api grpc --host 127.0.0.1 --port 4000 --module-name lakehouse_assets.definitions &
for n in $(seq 60); do dagster api grpc-health-check --port 4000 && break; sleep 1; done
LAKEHOUSE_CODE_SERVER_HOST=127.0.0.1 dagster job list -w /opt/lakehouse/deploy/workspace.yaml
"""
# The services of a deployment without Dagster+, each from this image. $1: the webserver's port.
DEPLOYMENT = """
dagster api grpc --host 127.0.0.1 --port 4000 --module-name lakehouse_assets.definitions &
until dagster api grpc-health-check --port 4000; do sleep 1; done
dagster-daemon run -w /opt/lakehouse/deploy/workspace.yaml &
exec dagster-webserver --host 127.0.0.1 --port $1 -w /opt/lakehouse/deploy/workspace.yaml
"""
HEALTH = """{ instance { daemonHealth { allDaemonStatuses { daemonType required healthy } } }
  workspaceOrError { ... on Workspace { locationEntries { name loadStatus } } } }"""
DAEMONS = {"SENSOR", "SCHEDULER", "BACKFILL", "ASSET", "QUEUED_RUN_COORDINATOR", "MONITORING", "EVENT_LOG_CONSUMER"}


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    assert not (missing := missing_tools()), f"building the image needs {', '.join(missing)}"
    with tempfile.TemporaryDirectory(prefix="lakehouse-image-") as folder:
        yield Builder(ROOT, Path(folder), read_settings().cache / "image").build()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """LAKEHOUSE_HOME of a container: its user's own."""
    tmp_path.chmod(0o755)
    folder = tmp_path / "home"
    folder.mkdir()
    os.chown(folder, UID, UID)
    return folder


def _told(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout[-8000:]
    return done.stdout


def test_nothing_that_builds_is_left(image: Image) -> None:
    found = image.run("/bin/sh", "-c", f"for tool in {' '.join(TOOLS)}; do command -v $tool; done; true")
    assert _told(found) == ""
    leftovers = [
        *image.root.glob("var/lib/apt/lists/*"),
        *image.root.glob("var/cache/apt/*"),
        *image.root.glob("tmp/*"),
        *image.root.glob("root/.cache"),
        *image.root.glob("root/.ivy2*"),
        *image.root.glob("opt/*/bin/uv"),
        *image.root.glob("opt/lakehouse/venv/lib/python*/site-packages/pip"),
    ]
    assert leftovers == []


def test_its_user_is_not_root_and_writes_nowhere_but_at_home(image: Image) -> None:
    assert _told(image.run("id", "-u")).strip() == str(UID)
    assert _told(image.run("/bin/sh", "-c", WRITABLE)) == ""
    assert _told(image.run("/bin/sh", "-c", f"touch {HOME}/x && rm {HOME}/x && echo $HOME")).strip() == HOME


def test_it_has_the_code_of_the_checkout_whole(image: Image) -> None:
    code = "from lakehouse_assets.environment.machine import content_hash; print(content_hash())"
    told = image.run("python", "-c", code)
    assert _told(told).strip() == content_hash()


def test_the_definitions_are_valid_offline_on_a_read_only_root(image: Image, home: Path) -> None:
    command = ("dagster", "definitions", "validate", "-m", "lakehouse_assets.definitions")
    told = _told(image.run(*command, offline=True, read_only=True, mounts={home: HOME}))
    assert "All code locations passed validation" in told


def test_a_worker_stages_offline_on_a_read_only_root_and_takes_the_archive(image: Image, home: Path) -> None:
    container = {"offline": True, "read_only": True, "mounts": {home: HOME}}
    archive = _told(image.run("python", "-c", ARCHIVE, **container)).strip()
    assert archive.startswith("/opt/lakehouse/cache/archives/")
    assert archive.endswith(".jsa")

    # Behind the worker's own -Xlog:disable: where the JVM took each class from.
    log = {"LAKEHOUSE_SPARK__spark__driver__extraJavaOptions": f"-Xlog:class+load:file={HOME}/classes.log"}
    select = "key:nyc/landing or key:nyc/airlines"
    command = ("dagster", "asset", "materialize", "-m", "lakehouse_assets.definitions", "--select", select)
    _told(image.run(*command, env=log, **container))
    assert "rows: 16" in _told(image.run("python", "-c", ROWS, **container))
    classes = (home / "classes.log").read_text().splitlines()
    archived = [line for line in classes if "shared objects file (top)" in line]
    assert sum("org.apache." in line for line in archived) > 5000, f"{len(archived)} of {len(classes)} classes"


def test_the_workspace_of_the_webserver_finds_the_code_location(image: Image, home: Path) -> None:
    told = _told(image.run("/bin/sh", "-c", SERVED, offline=True, read_only=True, mounts={home: HOME}))
    assert "lakehouse_assets" in told
    assert "__ASSET_JOB" in told


def test_the_default_command_serves_and_ends_at_once_when_stopped(image: Image, home: Path, tmp_path: Path) -> None:
    """As ECS stops a task: SIGTERM to the container's first process, which is deaf to it unless it handles it."""
    log = tmp_path / "server.log"
    command = image.command(*image.entrypoint, *image.cmd, offline=True, read_only=True, mounts={home: HOME})
    with log.open("wb") as output:
        unshare = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        until(lambda: "Started Dagster code server" in log.read_text(), state=log.read_text)
        (first,) = first_process(unshare)
        stopped = time.monotonic()
        os.kill(first, signal.SIGTERM)
        unshare.wait(20)
        assert time.monotonic() - stopped < 20
    finally:
        end(unshare)


def test_webserver_and_daemon_run_from_it_on_the_production_instance(
    image: Image, home: Path, tmp_path: Path, weed: SeaweedFS
) -> None:
    (port,) = free_ports(1)
    log = tmp_path / "services.log"
    with surroundings(weed, RunTasks(tmp_path)) as variables:
        env = {**variables, "DAGSTER_HOME": "/opt/lakehouse/deploy", "LAKEHOUSE_CODE_SERVER_HOST": "127.0.0.1"}
        container = {"env": env, "read_only": True, "mounts": {home: HOME}}
        _told(image.run("dagster", "instance", "concurrency", "set", "lake_workers", "50", **container))
        assert "50" in _told(image.run("dagster", "instance", "concurrency", "get", "lake_workers", **container))
        with log.open("wb") as output:
            command = image.command("/bin/sh", "-c", DEPLOYMENT, "sh", str(port), **container)
            unshare = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            until(lambda: _healthy(port), state=log.read_text)
        finally:
            end(unshare)


def _healthy(port: int) -> bool:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/graphql", json.dumps({"query": HEALTH}).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            told = json.load(answer)["data"]
    except OSError:
        return False
    statuses = told["instance"]["daemonHealth"]["allDaemonStatuses"]
    loaded = told["workspaceOrError"]["locationEntries"] == [{"name": "lakehouse_assets", "loadStatus": "LOADED"}]
    return loaded and {s["daemonType"] for s in statuses if s["required"] and s["healthy"]} >= DAEMONS
