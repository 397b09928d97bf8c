"""The checks that a table declares on its rows, evaluated on what one worker staged.
What failed rows mean for the run is decided in commit/audit.py."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse_assets.protocol.receipts import FailedCheck
from lakehouse_assets.protocol.step_code import FUNCTION

SHOWN = 5


class CheckError(RuntimeError):
    """A check can't be evaluated on the table's columns."""


def failed_checks(rows: DataFrame, checks: Mapping[str, str]) -> tuple[FailedCheck, ...]:
    """Those that some of the rows fail: by all in one pass over the rows, and one more for the examples of each. Raises
    CheckError."""
    if not checks:
        return ()
    failing = {name: _failing(rows, name, check) for name, check in checks.items()}
    counts = rows.agg(*(F.count_if(failed).alias(str(n)) for n, failed in enumerate(failing.values()))).first()
    assert counts is not None
    found = zip(failing.items(), counts, strict=True)
    return tuple(FailedCheck(name, count, _examples(rows, failed)) for (name, failed), count in found if count)


def _failing(rows: DataFrame, name: str, check: str) -> Column:
    try:
        failing = ~F.coalesce(_condition(check), F.lit(True))
        rows.select(failing)  # Spark looks for its columns here; later it would not say which check is wrong
    except AnalysisException as error:
        problem = str(error).strip().partition("SQLSTATE")[0].strip()
        raise CheckError(
            f"the check {name!r} ({check}) can't be evaluated: {problem} Mend the check in the table's declaration"
        ) from None
    return failing


def _condition(check: str) -> Column:
    if not FUNCTION.fullmatch(check):
        return F.expr(check)
    module, _, function = check.partition(":")
    made: Column = getattr(import_module(module), function)()
    return made


def _examples(rows: DataFrame, failed: Column) -> tuple[str, ...]:
    found = rows.where(failed).limit(SHOWN).collect()
    return tuple(", ".join(f"{name}={value}" for name, value in row.asDict().items()) for row in found)
