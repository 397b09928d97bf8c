"""The features of this library, in the order in which runs call their hooks."""

from __future__ import annotations

from collections.abc import Sequence

from lakehouse_assets.extensions.queue.extension import Queue
from lakehouse_assets.extensions.releases.extension import Releases
from lakehouse_assets.extensions.sources.extension import Sources
from lakehouse_assets.extensions.sql.extension import Sql
from lakehouse_assets.inputs.extension import Inputs
from lakehouse_assets.run.extension import Extension

EXTENSIONS: Sequence[Extension] = (
    # What waits in the inbox is recorded before inputs are pinned: the pins then contain what the messages tell of.
    Queue(),
    Inputs(),
    Sources(),
    Releases(),
    Sql(),
)
