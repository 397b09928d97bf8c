"""Tokens of runs in a table's history.

A token is the id of the head of a resume chain, the first run in a chain of re-executions from failure. Commits name it
in a table property, by which a repeated publish finds the first one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of

from lakehouse_assets.environment.catalog import RUN_PROPERTIES
from lakehouse_assets.errors import PublishRefused, RolledBack


@dataclass(frozen=True)
class History:
    """The unexpired history of a snapshot."""

    snapshots: dict[int, Snapshot]
    """All of the table, by id."""
    line: dict[int, int]
    """Sequence numbers of the snapshot and its ancestors by id, newest first."""
    is_empty: bool
    """Whether it is the history of an empty table."""

    @classmethod
    def of(cls, metadata: TableMetadata) -> History:
        """Returns the history of main's head."""
        return cls.behind(metadata, metadata.current_snapshot_id)

    @classmethod
    def behind(cls, metadata: TableMetadata, head: int | None) -> History:
        """Returns the history of a snapshot; None: of an empty table."""
        snapshots = {s.snapshot_id: s for s in metadata.snapshots}
        line: dict[int, int] = {}
        # 0 is no snapshot's id.
        here = snapshots.get(head or 0)
        while here is not None:
            line[here.snapshot_id] = here.sequence_number or 0
            here = snapshots.get(here.parent_snapshot_id or 0)
        return cls(snapshots, line, is_empty=head is None)

    @classmethod
    def at(cls, metadata: TableMetadata, time: datetime) -> History | None:
        """Returns the history of main's head at a time; None if the snapshot log doesn't reach back to it."""
        heads = [one.snapshot_id for one in metadata.snapshot_log if one.timestamp_ms <= time.timestamp() * 1000]
        return cls.behind(metadata, heads[-1]) if heads else None

    @cached_property
    def _oldest(self) -> int:
        return min(self.line.values())

    def lacks(self, snapshot_id: int) -> bool:
        """Whether a snapshot is proven not to be in this history.

        Sequence numbers fall towards the root, so a snapshot not older than the oldest known ancestor would be known.
        False if expired snapshots leave it open.
        """
        wanted = self.snapshots.get(snapshot_id)
        if wanted is None or snapshot_id in self.line:
            return False
        return self.is_empty or (bool(self.line) and self._oldest <= (wanted.sequence_number or 0))

    @property
    def has_others(self) -> bool:
        """Whether lacks() holds for any snapshot of the table."""
        return any(self.lacks(one) for one in self.snapshots)


PREFIX = RUN_PROPERTIES
"""How the names of token properties begin."""
TOKEN = "lakehouse.token"
"""The summary entry that names the run."""
RUN_ID = "lakehouse.run-id"
"""The summary entry of the Dagster run that committed, perhaps a re-execution."""
# Separates a token's name from its chunks, which go into the property's value: Glue takes 255 characters for a name,
# 512,000 for a value (https://docs.aws.amazon.com/glue/latest/webapi/API_TableInput.html).
SPANS = ":"
# The mark of a run whose snapshot was rolled back and may have expired since; it follows the run's time.
ROLLED_BACK = "/rolled-back"
RESUMABLE = timedelta(days=14)
"""How long after its creation a run may be resumed."""
# How long token properties stay: longer by what a resumed run may wait and work. An hourly table has fewer than a
# thousand such properties.
KEEP = RESUMABLE + timedelta(days=16)
KEEP_MS = KEEP // timedelta(milliseconds=1)
# So many properties stay whatever their age, so that a run created under a clock far ahead prunes no others. An hourly
# table gets as many in a month.
NEWEST = 750


@dataclass(frozen=True)
class RunToken:
    """Identifies a run's commit."""

    text: str
    """The head of the resume chain; if only some chunks are published, ``<head>.<part>:<chunks>``."""
    created: datetime
    """By Dagster's storage (aware): one clock orders a table's tokens."""

    @property
    def created_ms(self) -> int:
        """In epoch ms."""
        return int(self.created.timestamp() * 1000)


@dataclass(frozen=True)
class _Entry:
    """A token property's value: ``<snapshot id>@<epoch ms>[/rolled-back][:<chunks>]``."""

    snapshot_id: int
    created_ms: int
    marked: bool
    """Whether the run counts as rolled back if the history can't tell."""
    spans: str
    """The chunks of a run's part, as in the token; empty if the run was published as a whole."""

    @classmethod
    def parse(cls, value: str) -> _Entry | None:
        """Reads the text of str(); None for another text."""
        head, _, spans = value.partition(SPANS)
        snapshot_id, _, created = head.partition("@")
        epoch_ms = created.removesuffix(ROLLED_BACK)
        if not (snapshot_id.isdecimal() and epoch_ms.isdecimal()):
            return None
        return cls(int(snapshot_id), int(epoch_ms), created != epoch_ms, spans)

    def __str__(self) -> str:
        mark = ROLLED_BACK if self.marked else ""
        return f"{self.snapshot_id}@{self.created_ms}{mark}{SPANS if self.spans else ''}{self.spans}"


def token_property(token: RunToken, snapshot_id: int) -> dict[str, str]:
    """Returns ``{"lakehouse.run.<token>": "<snapshot id>@<epoch ms>[:<chunks>]"}``."""
    name, _, spans = token.text.partition(SPANS)
    return {PREFIX + name: str(_Entry(snapshot_id, token.created_ms, marked=False, spans=spans))}


def known_as_rolled_back(metadata: TableMetadata) -> set[int]:
    """Returns the snapshots of runs that were rolled back, also those that have expired since."""
    return {entry.snapshot_id for _, entry in _entries(metadata) if entry.marked}


def prunable(metadata: TableMetadata, token: RunToken) -> list[str]:
    """Returns the token properties that a commit with ``token`` prunes.

    They are unreadable, or older by KEEP than both ``token`` and the newest property; the NEWEST newest stay.
    """
    times = _times(metadata)
    oldest = min(token.created_ms, max(times.values(), default=0)) - KEEP_MS
    newest = set(sorted(times, key=lambda name: times[name], reverse=True)[:NEWEST])
    return [name for name, at in times.items() if not at or (at < oldest and name not in newest)]


def is_forgotten(metadata: TableMetadata, token: RunToken) -> bool:
    """Whether prunable() may have pruned the token's property.

    If it has, NEWEST newer ones are there, two of them newer by more than KEEP.
    """
    times = sorted(_times(metadata).values())
    newer = sum(time > token.created_ms for time in times)
    # The two that are newer by KEEP: the token that pruned, and the newest property at that time.
    is_old = newer >= max(NEWEST, 2) and token.created_ms < times[-2] - KEEP_MS
    return is_old and not any(properties_of(metadata, token.text))


def find_published(table: str, metadata: TableMetadata, token: str) -> int | None:
    """Returns the snapshot that a run has published to main, if any, even if it has expired.

    Raises RolledBack if that snapshot is not in main's history, or was not when it expired, PublishRefused if the
    property can't be read.
    """
    token = token.partition(SPANS)[0]
    value = metadata.properties.get(PREFIX + token)
    if value is None:
        return None
    if (entry := _Entry.parse(value)) is None:
        raise PublishRefused(
            f"table {table}: property {PREFIX + token} is {value!r}, expected <snapshot id>@<epoch ms>"
        )
    if _is_rolled_back(History.of(metadata), entry):
        current = metadata.current_snapshot_id
        raise RolledBack(
            f"table {table}: run {token} published snapshot {entry.snapshot_id}, but the table was rolled back since: "
            f"that snapshot is not in the history of main, now at {current}. Nothing was published again. To get the "
            "run's rows back, materialize the partitions again in a new run, not by re-executing from failure"
        )
    return entry.snapshot_id


def find_added(table: str, metadata: TableMetadata, token: str) -> int | None:
    """Returns a snapshot of a run or its parts that is not rolled back. Raises PublishRefused as find_published()."""
    for name in properties_of(metadata, token):
        with suppress(RolledBack):
            if (snapshot_id := find_published(table, metadata, name.removeprefix(PREFIX))) is not None:
                return snapshot_id
    return None


def publishers(metadata: TableMetadata) -> list[str]:
    """Returns the runs (heads of resume chains) that have published, last created first."""
    times = _times(metadata)
    names = sorted(times, key=lambda name: times[name], reverse=True)
    return list(dict.fromkeys(name.removeprefix(PREFIX).partition(".")[0] for name in names))


def properties_of(metadata: TableMetadata, token: str) -> Iterator[str]:
    """Yields the properties of a run and its parts."""
    own = PREFIX + token.partition(SPANS)[0]
    return (name for name in metadata.properties if name == own or name.startswith(f"{own}."))


def is_rolled_back(metadata: TableMetadata, snapshot_id: int) -> bool:
    """Whether main's history certainly lacks the snapshot."""
    return History.of(metadata).lacks(snapshot_id)


def keeps_rows_since(metadata: TableMetadata, snapshot_id: int | None) -> bool:
    """Whether certainly no commit on main since that snapshot has removed a row.

    False if snapshots in between have expired.
    """
    for snapshot in ancestors_of(metadata.current_snapshot(), metadata):
        if snapshot.snapshot_id == snapshot_id:
            return True
        if snapshot.summary is None or snapshot.summary.operation not in (Operation.APPEND, Operation.REPLACE):
            return False
    return False


def changed_marks(before: TableMetadata, after: TableMetadata) -> dict[str, str]:
    """Returns the token properties that keep find_published()'s answers the same after an expiry.

    Without an expired snapshot, the history can't prove that it was rolled back, or forward again; a mark can.
    """
    then, now = History.of(before), History.of(after)
    changed = {}
    for name, entry in _entries(before):
        was = _is_rolled_back(then, entry)
        if _is_rolled_back(now, entry) != was:
            changed[name] = str(replace(entry, marked=was))
    return changed


def runs_since(metadata: TableMetadata, snapshot_id: int | None) -> set[str]:
    """Returns the runs (heads of resume chains) that changed rows since; all if the snapshot is gone."""
    found: set[str] = set()
    for snapshot in ancestors_of(metadata.current_snapshot(), metadata):
        if snapshot.snapshot_id == snapshot_id:
            break
        summary = snapshot.summary
        if summary is not None and summary.operation is not Operation.REPLACE and (token := summary[TOKEN]):
            found.add(token.partition(SPANS)[0].partition(".")[0])
    return found


def _entries(metadata: TableMetadata) -> Iterator[tuple[str, _Entry]]:
    for name, value in metadata.properties.items():
        if name.startswith(PREFIX) and (entry := _Entry.parse(value)):
            yield name, entry


def _times(metadata: TableMetadata) -> dict[str, int]:
    """Returns when the run of each token property was created, in epoch ms; 0 if the value can't be read."""
    unread = {name: 0 for name in metadata.properties if name.startswith(PREFIX)}
    return unread | {name: entry.created_ms for name, entry in _entries(metadata)}


def _is_rolled_back(history: History, entry: _Entry) -> bool:
    """Whether the entry's snapshot was rolled back. If the history proves nothing, the mark decides."""
    return entry.snapshot_id not in history.line and (history.lacks(entry.snapshot_id) or entry.marked)
