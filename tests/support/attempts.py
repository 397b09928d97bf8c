"""Attempts as a run makes them from assignments.
No worker is started here."""

from __future__ import annotations

from typing import Any

from lakehouse_assets.environment.launchers.base import Attempt
from lakehouse_assets.wire.work import Assignment


def attempt_at(assignment: Assignment, **options: Any) -> Attempt:
    """The first attempt to stage the assignment's chunk. options: other fields of the Attempt."""
    return Attempt(
        group=assignment.token,
        subject=assignment.table,
        ordinal=assignment.chunk,
        work=assignment.work,
        payload=assignment.to_fields(),
        spark_conf=assignment.spark_conf,
        **options,
    )
