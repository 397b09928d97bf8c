"""The query of a SQL step, as sqlglot reads it: one SELECT for Spark. Nothing here needs Spark."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlglot import Token
    from sqlglot.expressions import Query as Tree
    from sqlglot.optimizer.scope import Scope

DIALECT = "databricks"
"""sqlglot's name of Spark SQL with ``value:field``, which its own dialect "spark" can't read."""
OPERANDS = ("VAR", "IDENTIFIER", "R_PAREN", "R_BRACKET")
"""sqlglot tokens after which a colon takes a field of a value: ``value:field``."""
NAME = re.compile(r"[^\W\d]\w*")
CHANGES = "changes"
"""The table function that reads an input's changes, as Window.changes() does."""


class QueryError(ValueError):
    """A text is not one query.

    problem: why. offset: where, counted in characters; None if that is unknown.
    """

    def __init__(self, problem: str, offset: int | None = None) -> None:
        super().__init__(problem)
        self.problem, self.offset = problem, offset


@dataclass(frozen=True)
class Parameter:
    """A parameter in a query's text."""

    name: str
    start: int
    """The offset of its colon."""
    end: int
    """The offset behind its name."""
    in_list: bool
    """Whether it is an element of ``IN (…)``."""


@dataclass(frozen=True)
class TableFunction:
    """A call of changes() in a query's text."""

    table: str
    """The input, such as ``lake.nyc.flights``."""
    start: int
    end: int
    """The offset behind the closing parenthesis."""


@dataclass(frozen=True)
class Query:
    """One SELECT, with or without WITH."""

    text: str
    tree: Tree
    tokens: tuple[Token, ...]
    """Without semicolons at the end."""

    @property
    def body(self) -> str:
        """The text up to the last token; the lines are those of the text."""
        return self.text[: self.tokens[-1].end + 1]

    @cached_property
    def canonical(self) -> str:
        """The text without comments and layout."""
        parts = []
        for before, token in zip((None, *self.tokens), self.tokens, strict=False):
            # Of two texts side by side, the blank decides: 'it''s' is one text, 'it' 's' are two that Spark joins.
            texts = before and before.token_type.name == token.token_type.name == "STRING"
            joined = texts and before and before.end + 1 == token.start
            parts += ["" if joined else " ", self.text[token.start : token.end + 1]]
        return "".join(parts).strip()

    @cached_property
    def scopes(self) -> list[Scope]:
        """Each SELECT, with the tables, subqueries and common table expressions that it can name."""
        from sqlglot.optimizer.scope import traverse_scope

        return traverse_scope(self.tree)

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Its named parameters, each time they occur.

        Raises QueryError if they can't be told from fields (``value:field``).
        """
        found = tuple(self._parameters())
        from sqlglot import exp

        for token in self.tokens:
            if token.token_type.name == "PLACEHOLDER":
                raise QueryError("? is no parameter here: parameters have names, such as :start_date", token.start)
        if Counter(one.name for one in found) != Counter(node.name for node in self.tree.find_all(exp.Placeholder)):
            colon = next((token.start for token in self.tokens if token.token_type.name == "COLON"), None)
            raise QueryError(
                "parameters can't be told from fields: write :name after a blank, value:field without", colon
            )
        return found

    def _parameters(self) -> Iterator[Parameter]:
        opened: list[bool] = []  # of each open parenthesis, whether it is that of IN
        for at, token in enumerate(self.tokens):
            kind = token.token_type.name
            if kind == "L_PAREN":
                opened.append(at > 0 and self.tokens[at - 1].token_type.name == "IN")
            elif kind == "R_PAREN" and opened:
                opened.pop()
            elif kind == "COLON" and at + 1 < len(self.tokens):
                name = self.tokens[at + 1]
                if name.start != token.end + 1 or (at and self.tokens[at - 1].token_type.name in OPERANDS):
                    continue
                if NAME.fullmatch(written := self.text[name.start : name.end + 1]):
                    yield Parameter(written, token.start, name.end + 1, bool(opened and opened[-1]))

    @cached_property
    def changes(self) -> tuple[TableFunction, ...]:
        """Where it calls the table function ``changes``."""
        found = []
        for call in zip(*(self.tokens[n:] for n in range(4)), strict=False):
            kinds = [token.token_type.name for token in call[1:]]
            if call[0].text.lower() == CHANGES and kinds == ["L_PAREN", "STRING", "R_PAREN"]:
                found.append(TableFunction(call[2].text, call[0].start, call[3].end + 1))
        return tuple(found)


def place_in(text: str, offset: int | None) -> str:
    """Returns ``line:column`` of an offset, both from 1; an empty text for None."""
    if offset is None:
        return ""
    before = text[:offset]
    return f"{before.count(chr(10)) + 1}:{offset - before.rfind(chr(10))}"


@lru_cache(maxsize=1024)
def parse(text: str) -> Query:
    """Reads a query. Raises QueryError for anything that is not exactly one SELECT."""
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import ParseError, SqlglotError

    logging.getLogger("sqlglot").setLevel(logging.ERROR)  # else it warns of statements that are refused below

    try:
        dialect = sqlglot.Dialect.get_or_raise(DIALECT)
        tokens = dialect.tokenize(text)
        statements = [one for one in dialect.parser().parse(tokens, text) if one and not isinstance(one, exp.Semicolon)]
    except ParseError as error:
        found = error.errors[0] if error.errors else {}
        raise QueryError(_syntax(found), _offset(text, found)) from None
    except SqlglotError:
        raise QueryError("a quote or a comment is not closed") from None
    except RecursionError:
        raise QueryError("it is nested too deeply") from None
    while tokens and tokens[-1].token_type.name == "SEMICOLON":
        tokens.pop()
    if not statements or not tokens:
        raise QueryError("the query is empty")
    if len(statements) > 1:
        second = next(at for at, token in enumerate(tokens) if token.token_type.name == "SEMICOLON")
        raise QueryError("here a second statement begins: write one query", tokens[second + 1].start)
    (tree,) = statements
    if not isinstance(tree, exp.Query) or tree.find(exp.DML, exp.DDL, exp.Into):
        raise QueryError("this is no query: write one SELECT, or WITH … SELECT", tokens[0].start)
    if not tree.selects:
        raise QueryError("it selects nothing", tokens[0].start)
    return Query(text, tree, tuple(tokens))


def _syntax(found: dict[str, Any]) -> str:
    """Says what sqlglot says, and the way out for what only Spark can read."""
    said = str(found.get("description", "")).partition(" but got <")[0].rstrip(".")
    said = said.removeprefix("Invalid expression / ") or "syntax error"
    at = f" {found['highlight']!r}" if said == "Unexpected token" and found.get("highlight") else ""
    return f"{said}{at}. If it is no mistake, and Spark can read it, run it in a Python step by spark.sql(…)"


def _offset(text: str, found: dict[str, object]) -> int | None:
    """Returns the offset of the text that sqlglot highlights: its column counts to the end of that text."""
    line, column, shown = found.get("line"), found.get("col"), found.get("highlight") or ""
    if not isinstance(line, int) or not isinstance(column, int):
        return None
    before = sum(len(one) + 1 for one in text.split("\n")[: line - 1])
    return max(before, before + column - len(str(shown)))
