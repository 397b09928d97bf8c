"""What waits in the inbox is recorded before the inputs are pinned: a message that comes in between is never lost.
The versions of deps in Dagster are always older than the pins: Dagster reads them when the op begins."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import dagster as dg
import pytest

from lakehouse_assets.declare.modes import FullRefresh
from lakehouse_assets.environment.settings import QueueSettings
from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.extensions.queue.hook import inbox_of
from lakehouse_assets.extensions.queue.inbox import Item
from lakehouse_assets.inputs import hook
from lakehouse_assets.run.asset import table_asset
from lakehouse_assets.run.extension import Extension
from tests.conftest import Lake, failure_text
from tests.support.counting_runs import Counting
from tests.support.tables import whole

TABLE = whole(write_mode=FullRefresh(), reads=["demo.whole"])


def messages_that_wait(lake: Lake, monkeypatch: pytest.MonkeyPatch, extensions: Sequence[Extension]) -> int:
    """A run between whose pins and whose plan a message comes, and is meant for its table."""
    lakehouse = Counting(replace(lake, settings=replace(lake.settings, queue=QueueSettings("sqs/queue", ""))), TABLE)
    inbox, pin = inbox_of(lakehouse), hook.pin_inputs

    def pin_before_the_message(*arguments: Any) -> Any:
        pins, now_ms = pin(*arguments), round(time.time() * 1000)
        inbox.put([Item(TABLE.identifier, "", 1, now_ms, now_ms)])
        return pins

    monkeypatch.setattr(hook, "pin_inputs", pin_before_the_message)
    result = dg.materialize(
        [table_asset(TABLE, extensions)],
        instance=lake.instance,
        resources={"lakehouse": lakehouse},
        raise_on_error=False,
    )
    assert result.success, failure_text(result)
    return len(inbox.waiting({TABLE.identifier}))


def test_a_message_that_comes_after_the_pins_waits_for_the_next_run(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert messages_that_wait(lake, monkeypatch, EXTENSIONS) == 1


def test_in_the_other_order_it_is_lost(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    assert messages_that_wait(lake, monkeypatch, [*reversed(EXTENSIONS)]) == 0
