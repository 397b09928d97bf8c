"""Checks SQL conditions for Spark, without Spark, so that a wrong one is refused when the code location loads.

sqlglot, which reads them, knows less grammar than Spark: a condition that it may misread is *not judged* and accepted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import cache
from typing import TYPE_CHECKING

from lakehouse_assets.type_text import RESERVED

if TYPE_CHECKING:
    from sqlglot import Token
    from sqlglot.dialects.dialect import Dialect
    from sqlglot.errors import ParseError
    from sqlglot.expressions import Expr
    from sqlglot.parser import Parser

NOT_JUDGED = re.compile(r">>>|!>|!<|\bx\s+'|\bstruct\s*\(|\br['\"]", re.IGNORECASE)
"""SQL that sqlglot reads differently from Spark."""
OPERATORS = {
    *("EQ", "NEQ", "LT", "GT", "LTE", "GTE", "NULLSAFE_EQ", "DPIPE", "SLASH", "MOD", "COMMA", "DOT", "DCOLON"),
    *("R_PAREN", "R_BRACKET", "L_BRACKET", "IS", "IN", "LIKE", "ILIKE", "RLIKE", "BETWEEN", "AND", "OR"),
    *("WHEN", "THEN", "ELSE", ""),
}
"""A keyword before one of these sqlglot tokens, or at the end (""), is a column's name, as in ``case = 'x'``: Spark
reserves no keywords."""
PATTERNS = ("LIKE", "ILIKE", "RLIKE")
"""Operators that are also functions: ``regexp(name, 'x')``."""
PAIRS = {("CASE", "WHEN"), *(("NOT", after) for after in (*PATTERNS, "IN", "BETWEEN"))}
"""Pairs of a keyword and one of OPERATORS in which the keyword is not a name."""
NEVER_NAMES = ("NULL", "TRUE", "FALSE", "END")
"""Keywords that are not names even before OPERATORS."""
GRAMMAR = {
    *("AND", "OR", "NOT", "IS", "NULL", "TRUE", "FALSE", "IN", "BETWEEN", "CASE", "WHEN", "THEN", "ELSE", "END"),
    *PATTERNS,
}
"""Keywords of conditions. A condition with any other reserved word, such as a subquery's, is not judged."""
OF_MANY_ROWS = {
    *("any_value", "avg", "bool_and", "bool_or", "collect_list", "collect_set", "count", "count_if", "first", "last"),
    *("max", "max_by", "mean", "median", "min", "min_by", "std", "stddev", "sum", "variance"),
    *("dense_rank", "lag", "lead", "ntile", "percent_rank", "rank", "row_number"),
    *("explode", "explode_outer", "inline", "inline_outer", "posexplode", "posexplode_outer", "stack"),
}
"""Spark's most used aggregates, window functions and generators; Spark refuses all of them in a filter."""
WITHOUT_PARENTHESES = {
    *("current_catalog", "current_database", "current_date", "current_schema", "current_time", "current_timestamp"),
    *("current_user", "localtime", "localtimestamp", "session_user", "user"),
}
"""Functions that Spark calls without parentheses, so that they look like columns."""


def condition_problem(condition: str, columns: Collection[str] | None = None) -> str | None:
    """Returns why Spark can't evaluate an SQL condition on a row; None if it can, or if that is uncertain.

    columns: all columns of the row; None if only the step knows them. tests/integration/test_conditions_in_spark.py
    compares sqlglot with Spark. A word after the condition is refused: Spark takes ``n > 0 AND`` for ``n > 0`` with an
    alias.
    """
    from sqlglot import exp  # here, so that a location without conditions loads a third of a second earlier
    from sqlglot.errors import ParseError, TokenError

    if NOT_JUDGED.search(condition):
        return None
    try:
        tokens = _dialect().tokenize(condition)
        if not tokens:
            return "it is empty"
        if problem := _of_many_rows(tokens):
            return problem
        if _make_names(tokens):
            read = _parser().parse_into(exp.Condition, tokens, condition)
            return None if columns is None else _unknown_column(read, columns)
    except TokenError:
        return "a quote or a comment is not closed"
    except ParseError as error:
        return _parse_problem(error)
    except Exception:  # a crash of the parser says nothing about the condition
        return None
    return None


def _parse_problem(error: ParseError) -> str:
    found = error.errors[0]
    before, at = (found.get(part) or "" for part in ("start_context", "highlight"))
    # The description begins with a capital or not.
    if "nexpected" in (found.get("description") or ""):
        return f"unexpected {at!r}{f' after {before.strip()!r}' if before.strip() else ''}"
    return f"something is missing or misplaced at the end of {f'{before}{at}'.strip()!r}"


def _of_many_rows(tokens: list[Token]) -> str | None:
    """Returns what is wrong if the condition calls a function OF_MANY_ROWS."""
    if any(token.token_type.name == "SELECT" for token in tokens):
        return None  # a subquery may read many rows
    # Each token with its neighbours. A name after a dot is a method or a part of a column.
    for before, token, after in zip([None, *tokens], tokens, tokens[1:], strict=False):
        called = after.token_type.name == "L_PAREN" and not (before and before.token_type.name == "DOT")
        if called and token.text.lower() in OF_MANY_ROWS and token.token_type.name not in ("STRING", "IDENTIFIER"):
            return f"{token.text}() takes or returns many rows, but a condition is evaluated for each row"
    return None


def _unknown_column(read: Sequence[Expr | None], columns: Collection[str]) -> str | None:
    """Names the first column that the row lacks. Spark ignores case."""
    from sqlglot import exp

    known = {*WITHOUT_PARENTHESES, *(name.lower() for name in (*columns, *RESERVED))}
    for condition in filter(None, read):
        variables = {name.name.lower() for function in condition.find_all(exp.Lambda) for name in function.expressions}
        for column in condition.find_all(exp.Column):
            name = column.parts[0].name  # the column of s.part.deep; the others are its parts
            if name and name.lower() not in known | variables:
                return f"it names the column {name!r}, but the table has {', '.join(columns)}"
    return None


def _make_names(tokens: list[Token]) -> bool:
    """Changes keywords that can only be columns' names to names, in ``tokens``.

    Returns False if sqlglot may misread the condition.
    """
    from sqlglot import TokenType

    parser, dialect = type(_parser()), _dialect()
    after = ""
    for token in reversed(tokens):  # whether a word is a name depends on the next one
        kind = token.token_type
        is_keyword = token.text[:1].isalpha() and kind.name not in ("STRING", "IDENTIFIER", "VAR")
        if is_keyword:
            if kind in dialect.tokenizer_class.COMMANDS or (kind.name in PATTERNS and after == "L_PAREN"):
                return False
            never_name = kind.name in NEVER_NAMES or kind in parser.TYPE_TOKENS
            if not never_name and after in OPERATORS and (kind.name, after) not in PAIRS:
                token.token_type = TokenType.IDENTIFIER
            elif kind.name not in GRAMMAR:
                is_unknown_call = after == "L_PAREN" and kind not in parser.FUNC_TOKENS
                if is_unknown_call or kind not in parser.ID_VAR_TOKENS:
                    return False
        after = token.token_type.name
    return True


@cache
def _dialect() -> Dialect:
    from sqlglot.dialects.databricks import Databricks  # Spark's, plus paths such as j:a.b, which Spark 4 also reads

    return Databricks()


@cache
def _parser() -> Parser:
    from sqlglot import ErrorLevel, exp

    class Grammar(_dialect().parser_class):  # type: ignore[misc]
        """Accepts any number of arguments: sqlglot may not know a function's arity."""

        def validate_expression(self, expression: exp.Expression, args: list[object] | None = None) -> exp.Expression:
            if isinstance(expression, exp.Func) and not isinstance(expression, exp.Binary | exp.Case | exp.Cast):
                return expression
            return super().validate_expression(expression, args)  # type: ignore[no-any-return]

    return Grammar(error_level=ErrorLevel.IMMEDIATE, dialect=_dialect())
