"""A Pipes message reader that is asked for messages, so that it needs no thread of its own.
Where the messages lie is each launcher's."""

from __future__ import annotations

import json
import sys
from abc import abstractmethod
from typing import TYPE_CHECKING

import dagster as dg

if TYPE_CHECKING:
    from dagster._core.pipes.context import PipesMessageHandler


class PolledReader(dg.PipesMessageReader):
    """Dagster's own readers keep a thread for each worker; a run's poll loop asks this one from its only thread."""

    handler: PipesMessageHandler
    """Of the session; set in read_messages()."""

    @abstractmethod
    def read(self) -> None:
        """Pass the messages that have arrived to the session."""

    def pass_on(self, line: str | bytes) -> None:
        """Pass one line to the session. Never raises: if the line is no message, the session logs that."""
        try:
            self.handler.handle_message(json.loads(line))
        except Exception:  # the line may hold anything, and the durable proof decides
            self.handler.report_pipes_framework_exception(f"reading the message {line[:200]!r}", sys.exc_info())
