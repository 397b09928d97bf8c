"""The conditions that a table declares, made columns of Spark, and its checks, evaluated on what one worker staged.
What failed rows mean for the run is decided in commit/audit.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse_assets.protocol.receipts import FailedCheck
from lakehouse_assets.protocol.step_code import FUNCTION

SHOWN = 5


class CheckError(RuntimeError):
    """A condition of a declaration can't be evaluated on the rows that it is declared for."""


def condition(rows: DataFrame, what: str, column: Callable[[], Column], otherwise: bool) -> Column:
    """A condition over rows, none of which is read. otherwise: what null counts as. Raises CheckError, which begins
    with ``what``."""
    try:
        found = F.coalesce(column(), F.lit(otherwise))
        rows.select(found)  # Spark looks for its columns here; later it would not say which condition is wrong
    except AnalysisException as error:
        problem = str(error).strip().partition("SQLSTATE")[0].strip()
        raise CheckError(f"{what} can't be evaluated: {problem} Mend it in the table's declaration") from None
    return found


def sql(text: str) -> Column:
    """A condition in SQL. In parentheses no word after it is an alias; on lines of its own a comment in it ends."""
    return F.expr(f"(\n{text}\n)")


def refuse_unreadable(rows: DataFrame, checks: Mapping[str, str]) -> None:
    """Raise CheckError for the first check that can't be evaluated on such rows, none of which is read."""
    for name, check in checks.items():
        _failing(rows, name, check)


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
    return ~condition(rows, f"the check {name!r} ({check})", lambda: _declared(check), otherwise=True)


def _declared(check: str) -> Column:
    if not FUNCTION.fullmatch(check):
        return sql(check)
    module, _, function = check.partition(":")
    made: Column = getattr(import_module(module), function)()
    return made


def _examples(rows: DataFrame, failed: Column) -> tuple[str, ...]:
    found = rows.where(failed).limit(SHOWN).collect()
    return tuple(", ".join(f"{name}={value}" for name, value in row.asDict().items()) for row in found)
