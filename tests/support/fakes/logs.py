"""CloudWatch Logs over files: each stream is a process's output.
Reading only; what writes there is the services' own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.support.fakes.wire import Fault

# https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_GetLogEvents.html
MOST_EVENTS = 10_000


class FakeLogs:
    """find: the lines of a group's stream; None when there is no such stream."""

    def __init__(self, find: Callable[[str, str], list[str] | None]) -> None:
        self._find = find

    def get_log_events(
        self, logGroupName: str, logStreamName: str, limit: int = MOST_EVENTS, startFromHead: bool = False, **_: Any
    ) -> dict[str, Any]:
        if not 1 <= limit <= MOST_EVENTS:
            raise Fault("InvalidParameterException", f"limit must be between 1 and {MOST_EVENTS}")
        lines = self._find(logGroupName, logStreamName)
        if lines is None:
            raise Fault("ResourceNotFoundException", "The specified log stream does not exist.")
        now = int(time.time() * 1000)
        shown = lines[:limit] if startFromHead else lines[-limit:]
        return {
            "events": [{"timestamp": now, "ingestionTime": now, "message": line} for line in shown],
            "nextForwardToken": "f/1",
            "nextBackwardToken": "b/1",
        }
