"""What models of a table stand on: a catalog, a trash and a clock of their own, and what happened, counted.
Which table it is, and what may happen to it, is each model's."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import ClassVar
from unittest import mock

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from lakehouse_assets.maintenance.collect import trash
from lakehouse_assets.maintenance.collect.listing import storage_now
from lakehouse_assets.maintenance.collect.needed import Chain
from tests.support.collected import DAY_MS, TestSite

TABLES = int(os.environ.get("LAKEHOUSE_TEST_MODEL_TABLES", "30"))
"""Of the long tests of each model. About 45 steps each, as some end early."""
ROUNDS = 5
"""Hypothesis leaves some rules out of each example: what is seldom is missed by chance in one round of some."""


class SiteModel(RuleBasedStateMachine):
    """A model of the only table of a site."""

    open_site: ClassVar[Callable[[Path], TestSite]]
    figures: ClassVar[Counter[str]] = Counter()
    """How much happened, in all examples."""

    def open(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.site = type(self).open_site(self.folder)
        # The trash has the model's clock as well.
        self.clock = mock.patch.object(
            trash, "storage_now", lambda *where: storage_now(*where) + round(self.site.days * DAY_MS)
        )
        self.clock.start()
        self.figures["tables"] += 1

    def close(self, identifier: str) -> None:
        self.site.catalog.drop_table(identifier)  # the collector looks at all tables of a catalog
        self.clock.stop()
        shutil.rmtree(self.folder)
        vars(self).clear()  # Hypothesis keeps its machines, which would keep their tables' connections
        gc.collect()  # the frames of errors that were caught refer to themselves, and to tables

    def tell_dagster(self, name: str, created_at: float, *, published: bool, ended: bool) -> None:
        """What becomes of a run. created_at: in days of the model's clock."""
        created_ms = time.time_ns() // 1_000_000 + round(created_at * DAY_MS)
        self.site.runs[name] = Chain(created_ms, unfinished=not (published or ended), succeeded=published)


def run(
    machine: type[SiteModel], happens: Collection[str], examples: int, steps: int, *, always_the_same: bool = False
) -> None:
    """happens: of its figures, those that it must come to: it runs again until it has, ROUNDS times at most."""
    checked = settings(
        max_examples=examples,
        derandomize=always_the_same,
        stateful_step_count=steps,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],  # to find a shorter example takes minutes: by hand, when there is one
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    machine.figures.clear()
    try:
        for _ in range(1 if always_the_same else ROUNDS):
            run_state_machine_as_test(machine, settings=checked)
            if not (missed := [what for what in happens if not machine.figures[what]]):
                break
    finally:  # also of a run of hours that somebody ends with Ctrl-C
        print(dict(machine.figures))
    assert not missed, "the model never came to these"
