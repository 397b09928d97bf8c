"""A real server for AWS's services on loopback, MiniStack, in an environment of its own: it pins botocore.
It makes stacks of CloudFormation, and can ask IAM's policies for every request. What is asked of it is not here."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.fakes.ecs_rules import ACCOUNT
from tests.support.servers import REGION, free_ports, wait_until_it_answers

ROOT = Path(__file__).parents[2]
VERSION = "1.5.33"


@contextmanager
def ministack(*, asks_iam: bool = False) -> Iterator[str]:
    """Start MiniStack, empty; yields its URL. asks_iam: whether it refuses what no policy allows."""
    (port,) = free_ports(1)
    folder = Path(tempfile.mkdtemp(prefix="ministack-"))
    log = folder / "ministack.log"
    environment = {
        **os.environ,
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "MINISTACK_HOST": "127.0.0.1",
        "MINISTACK_ACCOUNT_ID": ACCOUNT,
        "MINISTACK_REGION": REGION,
        # Listeners that nobody here asks.
        "IOT_MTLS_ENABLED": "0",
        "SFTP_ENABLED": "0",
        "TMPDIR": str(folder),
        **({"AUTH": "true"} if asks_iam else {}),
    }
    command = [f"{ROOT}/scripts/uv", "tool", "run", "--quiet", "--from", f"ministack=={VERSION}", "ministack"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, stdout=output, stderr=output, env=environment, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_it_answers(f"{url}/_ministack/health", process, log)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGTERM)  # uv, which started it, and the server
        process.wait(30)
        shutil.rmtree(folder, ignore_errors=True)
