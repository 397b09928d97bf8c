"""Makes the conditions that a table declares columns of Spark, and evaluates its checks on what one worker staged.

What failed rows mean for the run is decided in commit/audit.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse_assets.protocol.receipts import FailedCheck
from lakehouse_assets.protocol.steps import FUNCTION
from lakehouse_assets.worker.failure import CheckError, root_message

SHOWN = 5
PATTERNS = r"like|regexp|to_date|to_timestamp|date_format|unix"
HAS_PATTERN = re.compile(rf"(?!.*\bselect\b).*({PATTERNS})", re.IGNORECASE | re.DOTALL)
"""A condition with a regular expression or a date's format, and without a subquery, which may read much."""
WHATEVER_COLUMNS = ("PARSE_SYNTAX_ERROR", "UNRESOLVED_ROUTINE", "WRONG_NUM_ARGS", "INVALID_WHERE_CONDITION")
"""Spark's error conditions for a text that no columns make right."""


def condition(
    rows: DataFrame, what: str, column: Callable[[], Column], *, otherwise: bool, counted: bool = False
) -> Column:
    """Returns a condition over rows, none of which is read. Raises CheckError, which begins with ``what``.

    otherwise: what null counts as. counted: whether the rows of which it is true will be counted.
    """
    try:
        found = F.coalesce(column(), F.lit(otherwise))
        # Spark looks for its columns here; later it would not say which condition is wrong. In a filter it takes no
        # aggregate, window or generator.
        where = rows.where(found)
        if counted:  # where Spark takes no rand(), among others
            where.agg(F.count_if(found))
    except AnalysisException as error:
        raise _unfit(what, error) from None
    return found


def _unfit(what: str, error: Exception) -> CheckError:
    problem = root_message(str(error)).partition("SQLSTATE")[0].strip()
    return CheckError(f"{what} can't be evaluated: {problem} Mend it in the table's declaration")


def sql(text: str) -> Column:
    """Returns a condition in SQL as a column.

    In parentheses no word after it is an alias; on lines of its own a comment in it ends.
    """
    return F.expr(f"(\n{text}\n)")


def refuse_unreadable(rows: DataFrame, checks: Mapping[str, str], delete_when: str = "") -> None:
    """Raises CheckError for the first condition that can't be evaluated on such rows, none of which is read.

    rows: of the table. delete_when: a merge's, which is of the step's rows: here it is refused only if no columns would
    make it right.
    """
    if delete_when:
        try:
            rows.where(sql(delete_when))
        except AnalysisException as error:
            if (error.getCondition() or "").startswith(WHATEVER_COLUMNS):
                raise _unfit(f"delete_when ({delete_when})", error) from None
    failing = {name: _failing(rows, name, check) for name, check in checks.items()}
    _run_over_nothing(rows, {_told(n, checks[n]): of for n, of in failing.items() if HAS_PATTERN.match(checks[n])})


def _run_over_nothing(rows: DataFrame, conditions: Mapping[str, Column]) -> None:
    """Runs conditions over no rows at all. Raises CheckError for one that fails.

    That a regular expression or a date's format is wrong only shows when the code that Spark makes of it begins.
    conditions: by what messages call them.
    """
    if not conditions:
        return
    nothing = rows.sparkSession.createDataFrame([], rows.schema).coalesce(1)
    try:
        nothing.select(*conditions.values()).collect()
    except Exception:
        for what, column in conditions.items():  # one by one, to name it
            try:
                nothing.select(column).collect()
            except Exception as error:
                if _names_metadata(error):
                    continue
                raise _unfit(what, error) from None


def _names_metadata(error: Exception) -> bool:
    """Tells whether a condition names one of Iceberg's own columns, which only the table's rows have."""
    return isinstance(error, AnalysisException) and (error.getCondition() or "").startswith("UNRESOLVED_COLUMN")


def failed_checks(rows: DataFrame, checks: Mapping[str, str]) -> tuple[FailedCheck, ...]:
    """Returns the checks that some of the rows fail. Raises CheckError.

    It takes one pass over the rows for all checks, and one more for the examples of each that fails.
    """
    if not checks:
        return ()
    failing = {name: _failing(rows, name, check) for name, check in checks.items()}
    counts = rows.agg(*(F.count_if(failed).alias(str(n)) for n, failed in enumerate(failing.values()))).first()
    assert counts is not None
    found = zip(failing.items(), counts, strict=True)
    return tuple(FailedCheck(name, count, _examples(rows, failed)) for (name, failed), count in found if count)


def _told(name: str, check: str) -> str:
    return f"the check {name!r} ({check})"


def _failing(rows: DataFrame, name: str, check: str) -> Column:
    return ~condition(rows, _told(name, check), lambda: _declared(check), otherwise=True, counted=True)


def _declared(check: str) -> Column:
    if not FUNCTION.fullmatch(check):
        return sql(check)
    module, _, function = check.partition(":")
    made: Column = getattr(import_module(module), function)()
    return made


def _examples(rows: DataFrame, failed: Column) -> tuple[str, ...]:
    found = rows.where(failed).limit(SHOWN).collect()
    return tuple(", ".join(f"{name}={value}" for name, value in row.asDict().items()) for row in found)
