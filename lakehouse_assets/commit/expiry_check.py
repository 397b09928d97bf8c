"""Checks what a catalog made of an expiry: compares the metadata just before and after its commit.

Only metadata files are read; the commit itself is in expire_commit.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.commit.audit import AuditFinding
from lakehouse_assets.commit.expiry_update import Expiry, without_snapshots

Version = tuple[str, TableMetadata]
"""A metadata file's location and what is in it."""


@dataclass(frozen=True)
class Committed:
    """One commit to a table."""

    base: Version
    """The metadata that it was made on; others may have committed since the plan saw the table."""
    result: Version
    """The metadata that it made."""
    unread: str | None = None
    """The reason why the base is not known, and is taken to be what the plan saw; None if it is known."""


def committed_by(expiry: Expiry, planned: Table, now: Version) -> Committed:
    """Finds the commit that expired what was planned, among those since.

    planned: the table as the plan saw it. now: the table as it is, with the commit, maybe with later ones.
    Reads the metadata files in between; as a rule there are none.
    """
    seen = (planned.metadata_location, planned.metadata)
    log = [entry.metadata_file for entry in now[1].metadata_log]
    if seen[0] not in log:
        return Committed(seen, now, f"{seen[0]} is not in the metadata log of {now[0]}")
    try:
        between = [_read(planned, location) for location in log[log.index(seen[0]) + 1 :]]
    except Exception as error:  # torn files raise errors of all kinds; the expiry has landed whatever they are
        return Committed(seen, now, str(error))
    commits = [Committed(base, result) for base, result in pairwise([seen, *between, now])]
    return next((commit for commit in commits if expiry.is_done(commit.result[1])), commits[-1])


def faults(table: str, expiry: Expiry, committed: Committed) -> Iterator[AuditFinding]:
    """Yields what the catalog did beyond or short of the expiry.

    table: its name, for messages.
    """
    (base, before), (result, after) = committed.base, committed.result
    gone = set(expiry.snapshot_ids)
    if not expiry.is_done(after):
        yield AuditFinding(
            "snapshots",
            f"table {table}: the catalog reported that {len(expiry.snapshot_ids)} snapshots expired, and kept some of "
            f"them in {result}. Report it to whoever runs the catalog",
            {"snapshots": len(after.snapshots)},
        )
        return
    expired = {s.snapshot_id: s for s in before.snapshots if s.snapshot_id in gone}
    lost = {name: expired[ref.snapshot_id] for name, ref in before.refs.items() if ref.snapshot_id in expired}
    if names := sorted(lost.keys() - set(expiry.refs) - after.refs.keys()):
        yield AuditFinding(
            "refs",
            f"table {table}: {', '.join(names)} was set to a snapshot while it expired, and the catalog removed both. "
            f"The files are there until the grace ends, and {base} is the metadata from before: take them from there",
            {name: {"snapshot": lost[name].snapshot_id, "manifest_list": lost[name].manifest_list} for name in names},
        )
    if committed.unread:
        yield AuditFinding(
            "refs",
            f"table {table}: whether a branch or tag that was set during the commit was lost is not known: "
            f"{committed.unread}. Look whether all that was set until now is there",
            {"planned_on": base, "result": result},
        )
        return  # what is compared below may be the work of others
    expected = without_snapshots(before, gone).snapshot_log
    if after.snapshot_log != expected[len(expected) - len(after.snapshot_log) :]:
        yield AuditFinding(
            "history",
            f"table {table}: the catalog left a hole in the snapshot log of {result}: a time travel to the days of an "
            "expired snapshot finds an older one. Travel by snapshot id or by tag instead",
            {"expected": len(expected), "found": len(after.snapshot_log)},
        )


def _read(table: Table, location: str) -> Version:
    return location, FromInputFile.table_metadata(table.io.new_input(location))
