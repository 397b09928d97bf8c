"""Rewrites of a small daily table, for tests: planned and written at one time, landed at another.
What is between the two is the test's."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any
from uuid import uuid4

from pyiceberg.typedef import Record

from lakehouse_assets.commit.landing import Landing, ReadSnapshot, RewriteUnit, land
from lakehouse_assets.commit.manifests import Entries, Partition
from lakehouse_assets.commit.tokens import RunToken
from lakehouse_assets.maintenance.rewrite.compact import CompactionReport, compact, rewrite
from lakehouse_assets.maintenance.rewrite.plan import RewriteTask, plan_rewrites
from tests.support.forks import Daily

FEW = 2


def token(text: str | None = None) -> RunToken:
    """Of a run that begins now."""
    return RunToken(text or uuid4().hex, datetime.now(UTC))


def base_of(daily: Daily) -> ReadSnapshot:
    """The table as it is now."""
    table = daily.table
    return ReadSnapshot(table.metadata, table.metadata.current_snapshot())


def rewrite_tasks(daily: Daily, *days: str, base: ReadSnapshot | None = None) -> list[RewriteTask]:
    """The rewrites of these days, of all without, as far as they need no Spark."""
    wanted = {partition_of_day(day) for day in days} or None
    tasks = plan_rewrites(base or base_of(daily), daily.table.io, Entries(), wanted, min_input_files=FEW)
    return [task for task in tasks if not task.needs_spark]


def rewritten(daily: Daily, *days: str, without: str | None = None) -> list[RewriteUnit]:
    """The units of these days, of all without, at the head of now. without: path of a file that is left out."""
    base = base_of(daily)
    tasks = rewrite_tasks(daily, *days, base=base)
    if without:
        tasks = [
            replace(t, groups=tuple(tuple(e for e in g if e.data_file.file_path != without) for g in t.groups))
            for t in tasks
        ]
    return [rewrite(base, daily.table.io, task) for task in tasks]


def landed(daily: Daily, *units: RewriteUnit, text: str | None = None) -> Landing:
    """text: the token's."""
    return land(daily.catalog, daily.identifier, units, token(text), {})


def partition_of_day(day: str) -> Partition:
    """Of a daily table of one spec."""
    return 0, Record((date.fromisoformat(day) - date(1970, 1, 1)).days)


def compacted(daily: Daily, *days: str, text: str | None = None, few: int = FEW, **options: Any) -> CompactionReport:
    """End to end. days: all without. few: how many small files are worth it."""
    wanted = {partition_of_day(day) for day in days} or None
    return compact(daily.catalog, daily.identifier, token(text), wanted, min_input_files=few, **options)


def compacted_here(daily: Daily) -> CompactionReport:
    """End to end, of what a policy leaves to the run's own process: all partitions that need no Spark."""
    wanted = {task.partition for task in rewrite_tasks(daily)}
    return compact(daily.catalog, daily.identifier, token(), wanted, min_input_files=FEW)
