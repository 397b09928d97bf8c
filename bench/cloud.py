"""A cloud of simulated workers: the fake ECS over SeaweedFS, whose tasks are threads that take their time and stage.
``python -m bench.cloud <folder> <seconds>`` prints how to reach it, and at the end of its input what it counted."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import boto3
from dagster_pipes import DAGSTER_PIPES_CONTEXT_ENV_VAR, decode_param
from pyiceberg.io import load_file_io

from lakehouse_assets.wire.work import Assignment
from tests.support.fakes import ecs_service
from tests.support.fakes.ecs import ecs_site
from tests.support.light_stage import stage
from tests.support.servers import ACCESS_KEY, REGION, SECRET_KEY, SeaweedFS, s3_requests, seaweedfs


class Cloud:
    """What all simulated workers share. running, most: how many run now, and how many ran at once. last: the
    place of one worker's context, and its assignment."""

    def __init__(self, weed: SeaweedFS, seconds: float) -> None:
        self.seconds = seconds
        self.properties = weed.s3_properties()
        self.s3 = boto3.Session(ACCESS_KEY, SECRET_KEY, region_name=REGION).client("s3", endpoint_url=weed.s3_endpoint)
        self.running = self.most = self.done = 0
        self.last: tuple[Mapping[str, str], Assignment] | None = None
        self._lock = threading.Lock()
        self._staging = threading.Lock()  # one interpreter: at once they would only slow each other

    def work(self, environment: Mapping[str, str]) -> None:
        """Be one worker."""
        until = time.monotonic() + self.seconds
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        place = decode_param(environment[DAGSTER_PIPES_CONTEXT_ENV_VAR])
        assignment = Assignment.from_json(json.loads(self._read(place))["extras"]["work"])
        self.last = place, assignment
        self._stage(assignment, until)
        with self._lock:
            self.running -= 1
            self.done += 1

    def own_requests(self, metrics: str) -> int:
        """How many requests to S3 a worker makes by itself: counted at the server, while no other worker runs."""
        assert self.last is not None
        place, assignment = self.last
        before = s3_requests(metrics)
        with suppress(self.s3.exceptions.NoSuchKey):  # the run has removed it; the request counts
            self._read(place)
        self._stage(assignment, time.monotonic())
        return s3_requests(metrics) - before

    def _read(self, place: Mapping[str, str]) -> bytes:
        body: bytes = self.s3.get_object(Bucket=place["bucket"], Key=place["key"])["Body"].read()
        return body

    def _stage(self, assignment: Assignment, until: float) -> None:
        with self._staging:
            receipt = stage(assignment, self.properties, each=1, stage_seconds=self.seconds, worker="simulated")
        time.sleep(max(0.0, until - time.monotonic()))
        receipt.write(load_file_io(self.properties, assignment.receipt), assignment.receipt)


@dataclass
class Simulated:
    """In place of tests/support/fakes/agent.py's Process: a thread of this process."""

    command: Any
    environment: Mapping[str, str]
    log: Path
    delay: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    cloud: Any = None
    _thread: threading.Thread | None = field(default=None, repr=False)
    _starting: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def look(self) -> str:
        with self._starting:  # the service's requests and its clock look at once
            if self._thread is None and self.ended_at is None:
                self.started_at = time.time()
                self._thread = threading.Thread(target=CLOUD[0].work, args=(self.environment,), daemon=True)
                self._thread.start()
        if self._thread is not None and self._thread.is_alive():
            return "running"
        self.ended_at = self.ended_at or time.time()
        return "ended"

    @property
    def code(self) -> int | None:
        return 0 if self.ended_at else None

    def stop(self) -> None:
        """It ends by itself."""

    kill = stop

    def tail(self, lines: int = 50) -> list[str]:
        return []


CLOUD: list[Cloud] = []


def main(folder: Path, seconds: float) -> None:
    with patch.object(ecs_service, "Process", Simulated), seaweedfs() as weed:
        CLOUD.append(Cloud(weed, seconds))
        with ecs_site(weed, folder) as site:
            print(json.dumps({"environment": site.environment, "metrics": weed.metrics}), flush=True)
            sys.stdin.read()
            cloud = CLOUD[0]
            seen = {"most": cloud.most, "done": cloud.done, "tasks": site.started(), "calls": dict(site.service.calls)}
            print(json.dumps({**seen, "own": cloud.own_requests(weed.metrics)}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
