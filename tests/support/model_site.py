"""What models of a table stand on: a catalog, a trash and a clock of their own, and what happened, counted.
Which table it is, and what may happen to it, is each model's."""

from __future__ import annotations

import gc
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar
from unittest import mock

from hypothesis.stateful import RuleBasedStateMachine

from lakehouse_assets.collect import trash
from lakehouse_assets.collect.leases import Chain
from lakehouse_assets.collect.listing import storage_now
from tests.support.collected import DAY_MS, TestSite


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
