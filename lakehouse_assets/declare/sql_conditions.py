"""Conditions in SQL of a declaration: whether Spark could read them, as far as that can be told without Spark.
Which columns and functions there are, and of which types, only Spark can tell, when a worker starts."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlglot import Token
    from sqlglot.dialects.dialect import Dialect
    from sqlglot.errors import ParseError
    from sqlglot.parser import Parser

NOT_JUDGED = re.compile(r">>>|!>|!<|\bx\s+'|\bstruct\s*\(|\br['\"]", re.IGNORECASE)
"""What sqlglot reads otherwise than Spark's grammar says."""
OPERATORS = {
    *("EQ", "NEQ", "LT", "GT", "LTE", "GTE", "NULLSAFE_EQ", "DPIPE", "SLASH", "MOD", "COMMA", "DOT", "DCOLON"),
    *("R_PAREN", "R_BRACKET", "L_BRACKET", "IS", "IN", "LIKE", "ILIKE", "RLIKE", "BETWEEN", "AND", "OR"),
    *("WHEN", "THEN", "ELSE", ""),
}
"""sqlglot's names of tokens before which, or before the end, a keyword is a name: Spark reserves none, as in
``case = 'x'``."""
PATTERNS = ("LIKE", "ILIKE", "RLIKE")
"""Operators that are functions as well: ``regexp(name, 'x')``."""
PAIRS = {("CASE", "WHEN"), *(("NOT", after) for after in (*PATTERNS, "IN", "BETWEEN"))}
"""Two keywords in a row of which the first is no name."""
VALUES = ("NULL", "TRUE", "FALSE", "END")
"""Keywords that stand before an operator as what they are."""
WORDS = ("AND", "OR", "NOT", "IS", "NULL", "TRUE", "FALSE", "IN", "BETWEEN", "CASE", "WHEN", "THEN", "ELSE", "END")
GRAMMAR = {*WORDS, *PATTERNS}
"""Keywords that conditions are made of. One with any other reserved word, such as that of a subquery, is not judged."""


def condition_problem(condition: str) -> str | None:
    """Why Spark can't read a condition in SQL; None if it can, or where that is not certain.

    sqlglot reads it, in Spark's dialect. It knows less of the grammar than Spark does, so what it is known to get wrong
    is left to Spark (tests/integration/test_conditions_in_spark.py compares the two). A word after the condition is
    refused: as an alias, Spark would take ``n > 0 AND`` for ``n > 0``.
    """
    from sqlglot import exp  # here, so that a location without conditions loads a third of a second earlier
    from sqlglot.errors import ParseError, TokenError

    if NOT_JUDGED.search(condition):
        return None
    try:
        tokens = _tokens(condition)
        if tokens == []:
            return "it is empty"
        if tokens is not None:
            _parser().parse_into(exp.Condition, tokens, condition)
    except TokenError:
        return "a quote or a comment has no end"
    except ParseError as error:
        return _told(error)
    except Exception:  # a crash of the parser says nothing of the condition
        return None
    return None


def _told(error: ParseError) -> str:
    found = error.errors[0]
    before, at = (found.get(part) or "" for part in ("start_context", "highlight"))
    if "nexpected" in (found.get("description") or ""):
        return f"unexpected {at!r}{f' after {before.strip()!r}' if before.strip() else ''}"
    return f"something is missing or out of place at the end of {f'{before}{at}'.strip()!r}"


def _tokens(condition: str) -> list[Token] | None:
    """The tokens, keywords that can only be names told apart; None for a condition that sqlglot may get wrong."""
    from sqlglot import TokenType

    parser, dialect = type(_parser()), _dialect()
    tokens = dialect.tokenize(condition)
    after = ""
    for token in reversed(tokens):  # whether a word is a name hangs on whether the next one is
        kind = token.token_type
        if token.text[:1].isalpha() and kind.name not in ("STRING", "IDENTIFIER", "VAR"):
            if kind in dialect.tokenizer_class.COMMANDS or (kind.name in PATTERNS and after == "L_PAREN"):
                return None
            is_value = kind.name in VALUES or kind in parser.TYPE_TOKENS
            if not is_value and after in OPERATORS and (kind.name, after) not in PAIRS:
                token.token_type = TokenType.IDENTIFIER
            elif kind.name not in GRAMMAR:
                called = after == "L_PAREN" and kind not in parser.FUNC_TOKENS
                if called or kind not in parser.ID_VAR_TOKENS:
                    return None
        after = token.token_type.name
    return tokens


@cache
def _dialect() -> Dialect:
    from sqlglot.dialects.databricks import Databricks  # Spark's, and paths such as j:a.b, which Spark 4 reads as well

    return Databricks()


@cache
def _parser() -> Parser:
    from sqlglot import ErrorLevel, exp

    class Grammar(_dialect().parser_class):  # type: ignore[misc]
        """Reads a function with any number of arguments: sqlglot may not know how many it takes."""

        def validate_expression(self, expression: exp.Expression, args: list[object] | None = None) -> exp.Expression:
            if isinstance(expression, exp.Func) and not isinstance(expression, exp.Binary | exp.Case | exp.Cast):
                return expression
            return super().validate_expression(expression, args)  # type: ignore[no-any-return]

    return Grammar(error_level=ErrorLevel.IMMEDIATE, dialect=_dialect())
