"""ECS's task metadata endpoint, version 4, on loopback, as a task's containers see it. What it tells is the caller's.
https://docs.aws.amazon.com/AmazonECS/latest/developerguide/task-metadata-endpoint-v4-fargate.html"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.support.http_server import Handler, http_server

PATH = "/v4"


@contextmanager
def task_metadata(document: Callable[[str], Mapping[str, Any] | None]) -> Iterator[str]:
    """Yields the address. document: what is at a path below it (``""``, ``/task``, …), None where nothing is."""

    class Documents(Handler):
        def do_GET(self) -> None:
            found = document(self.path.removeprefix(PATH))
            self.answer(404 if found is None else 200, json.dumps(found).encode(), {"Content-Type": "application/json"})

    with http_server(Documents) as url:
        yield url + PATH
