"""Writes docs/options.md, the reference of all options, from what their classes say of their fields.
`make options`; a test holds that it was done."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from pathlib import Path

import lakehouse_assets
from lakehouse_assets.declare import table
from lakehouse_assets.declare.field_docs import field_docs

PAGE = Path(__file__).parents[1] / "docs" / "options.md"
CLASSES = {
    "Table": "The table",
    "OnSchemaChange": "",
    "OnLayoutChange": "",
    "Column": "Its columns",
    "Overwrite": "Write modes",
    "FullRefresh": "",
    "Append": "",
    "Merge": "",
    "Rewrites": "",
    "Tuning": "How files are written",
    "Distribution": "",
    "Compression": "",
    "Planning": "",
    "Size": "The size of a worker",
    "Maintenance": "How it is kept fast",
    "Level": "",
    "Arrivals": "What arrives",
    "Pace": "",
    "KafkaTopic": "Sources",
    "Json": "",
    "Avro": "",
    "PostgresTable": "",
    "Domain": "The domain",
    "Release": "What readers get together",
    "HandOff": "What readers without Iceberg get",
}
"""The public classes in order, each with the heading that begins with it."""
INTRODUCTION = """# Options

Look up an option of a declaration: its type, its default and what it means. `make options` writes this page from the
docstrings of the classes. To learn what the options are for, begin with [your first table](first-table.md). Import the
names `from lakehouse_assets`; in YAML, an option is an attribute of the same name.
"""


def page() -> str:
    """The page's text."""
    parts = [INTRODUCTION]
    for name, heading in CLASSES.items():
        if heading:
            parts.append(f"## {heading}\n")
        parts.append(_section(name, getattr(lakehouse_assets, name, None) or getattr(table, name)))
    return "\n".join(parts)


def _section(name: str, cls: type) -> str:
    about = inspect.cleandoc(cls.__doc__ or "").partition("\n\nExamples:")[0]
    lines = [f"### {name}\n", f"{_markdown(about)}\n"]
    docs = field_docs(cls)
    if issubclass(cls, enum.Enum):
        lines += ["| value | meaning |", "|---|---|"]
        lines += [f"| `{one.value}` | {_markdown(docs.get(one.name, ''))} |" for one in cls]
    elif fields := dataclasses.fields(cls):  # type: ignore[arg-type]
        lines += ["| option | type | default | meaning |", "|---|---|---|---|"]
        lines += [f"| `{f.name}` | {_type(f)} | {_default(f)} | {_markdown(docs.get(f.name, ''))} |" for f in fields]
    return "\n".join(lines) + "\n"


def _type(field: dataclasses.Field[object]) -> str:
    text = str(field.type)
    # Not in a code span: GitHub needs a backslash there before the bar, which the site would show.
    return f"<code>{text.replace('|', '&#124;')}</code>" if "|" in text else f"`{text}`"


def _default(field: dataclasses.Field[object]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        made = field.default_factory
        return f"`{made.__name__}()`"
    if field.default is dataclasses.MISSING:
        return "required"
    value = field.default.value if isinstance(field.default, enum.Enum) else field.default
    return f"`{value!r}`"


def _markdown(text: str) -> str:
    return re.sub(r"``(.+?)``", r"`\1`", " ".join(text.split()).replace("|", "\\|"))


if __name__ == "__main__":
    PAGE.write_text(page())
