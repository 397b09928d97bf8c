"""Finds what the declarations would change on the lake, and what the next runs do about it.

That is tables to create, differences, and partitions that other code has made. Pure: what is there is handed in. The
job that shows it is in plan_job.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.commit.fork import FORMAT_VERSION
from lakehouse_assets.commit.schema_policy import PolicyAction, PolicyVerdict, verdicts
from lakehouse_assets.declare.table import Table
from lakehouse_assets.declare.terms import order_text, spec_text
from lakehouse_assets.keys_text import keys_text

COLUMNS = ("table", "difference", "declared", "on the lake", "the next run")
FAILS = "fails, because of another difference"
Row = tuple[str, str, str, str, str]


def differences(table: Table, found: TableMetadata | None, made_by: Mapping[str | None, str]) -> Iterator[Row]:
    """Yields a row of COLUMNS for each difference; none for a table that is as declared.

    found: None for a table that is not there. made_by: the code version that made each partition, under the key None
    for a table without partitions; partitions whose code version is not known are left out.
    """
    if found is None:
        yield (table.identifier, "table", _summary(table), "not there", "creates it")
        return
    changes, is_old = verdicts(table, found), found.format_version != FORMAT_VERSION
    if is_old:
        told = f"fails: only tables of version {FORMAT_VERSION} are written; one of version 1 can be set to it"
        yield (table.identifier, "format version", str(FORMAT_VERSION), str(found.format_version), told)
    fails = is_old or any(verdict.action is PolicyAction.REFUSE for verdict in changes)
    yield from (_row(table, verdict, fails=fails) for verdict in changes)
    made_otherwise: dict[str, list[str | None]] = defaultdict(list)
    for key, version in made_by.items():
        if version != table.code_version:
            made_otherwise[_changed(version, table.code_version)].append(key)
    for what, old in sorted(made_otherwise.items()):
        keys = sorted(key for key in old if key is not None)
        named = f"{what} of {len(keys)} of {len(made_by)} partitions: {keys_text(keys)}" if keys else what
        versions = ", ".join(sorted({made_by[key] for key in old}))
        told = "makes its partitions anew, and no others" if table.write_mode.replaces else "leaves their rows"
        yield (table.identifier, named, table.code_version, versions, FAILS if fails else told)


def _changed(made_by: str, now: str) -> str:
    """Names the halves that differ between two code versions of a table (Table.code_version): code, declaration."""
    halves = zip(("code", "declaration"), made_by.split("-"), now.split("-"), strict=False)
    return " and ".join(half for half, then, today in halves if then != today)


def _row(table: Table, verdict: PolicyVerdict, *, fails: bool) -> Row:
    change = verdict.change
    next_run = {
        PolicyAction.APPLY: FAILS if fails else "changes it, in the commit of its rows",
        PolicyAction.LEAVE: FAILS if fails else "leaves it, and makes its rows fit",
        PolicyAction.REFUSE: f"fails: {verdict.reason}",
    }
    return (table.identifier, change.what, change.declared, change.found, next_run[verdict.action])


def _summary(table: Table) -> str:
    partitions, order = spec_text(table.spec, table.schema), order_text(table.order, table.schema)
    return f"{len(table.schema.columns)} columns, partitioned by {partitions}, sorted by {order}"
