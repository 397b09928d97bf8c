"""Reads the strings below a class's fields from its source; Python doesn't keep them at run time."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import is_dataclass
from functools import cache
from itertools import pairwise


@cache
def field_docs(cls: type) -> dict[str, str]:
    """Returns the documentation of fields or enum members by name, on one line each."""
    of_bases = [field_docs(base) for base in cls.__bases__ if is_dataclass(base)]
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    docs = {name: doc for of_base in of_bases for name, doc in of_base.items()}
    # The documentation of a field is the string right after it. Members of an enum are assignments without annotation.
    for field, text in pairwise(node.body):
        targets = [field.target] if isinstance(field, ast.AnnAssign) else getattr(field, "targets", [])
        if (doc := _text(text)) and targets and isinstance(targets[0], ast.Name):
            docs[targets[0].id] = " ".join(doc.split())
    return docs


def _text(node: ast.stmt) -> str | None:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return node.value.value
    return None
