"""A step whose module can't be imported where it runs, for test_faults_spark.py."""

from __future__ import annotations

import no_such_module  # type: ignore[import-not-found]  # noqa: F401


def step(spark, window):
    """Never reached."""
