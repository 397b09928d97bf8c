"""Run tokens on a table: the property that lets a repeated publish know itself, found again and pruned.
Pure functions over table metadata; writing them is part of publish.py's commit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.errors import PublishRefused, RolledBack
from resources.catalog import RUN_PROPERTIES

PREFIX = RUN_PROPERTIES
# Between a token's name and which chunks of the run it stands for. That goes into the property's value: Glue takes 255
# characters for a name, 512,000 for a value (https://docs.aws.amazon.com/glue/latest/webapi/API_TableInput.html).
SPANS = ":"
RESUMABLE = timedelta(days=14)
"""How long after its creation a run may be resumed by a re-execution from failure."""
# Tokens outlive that by what a resumed run may wait and work; an hourly table's properties stay under a thousand.
KEEP = RESUMABLE + timedelta(days=16)
# Whatever their age: runs under a clock that is far ahead forget no others. A month of an hourly table's.
NEWEST = 750


@dataclass(frozen=True)
class RunToken:
    """What a run's commit is known by. text: the id of the run at the head of the resume chain, and behind it which
    part of the run. created: when Dagster's storage created that run (aware): its one clock orders the tokens of a
    table, whatever the clocks of the hosts that publish say."""

    text: str
    created: datetime

    @property
    def created_ms(self) -> int:
        return int(self.created.timestamp() * 1000)


def token_property(token: RunToken, snapshot_id: int) -> dict[str, str]:
    """The table property of a run's commit: ``{"lakehouse.run.<token>": "<snapshot id>@<epoch ms>"}``, and behind the
    value what the token has behind its name."""
    name, colon, spans = token.text.partition(SPANS)
    return {PREFIX + name: f"{snapshot_id}@{token.created_ms}{colon}{spans}"}


def outdated(metadata: TableMetadata, token: RunToken) -> list[str]:
    """Names of the token properties that a commit with ``token`` prunes: those older by KEEP than it and than the
    newest on the table, but for the NEWEST newest; and those that can't be read."""
    times = _times(metadata)
    oldest = min(token.created_ms, max(times.values(), default=0)) - _ms(KEEP)
    newest = set(sorted(times, key=lambda name: times[name], reverse=True)[:NEWEST])
    return [name for name, at in times.items() if not at or (at < oldest and name not in newest)]


def is_forgotten(metadata: TableMetadata, token: RunToken) -> bool:
    """Whether the token's property may have been on the table and was pruned: whatever outdated() pruned left NEWEST
    others, two of them newer by more than KEEP."""
    times = sorted(_times(metadata).values())
    return len(times) >= max(NEWEST, 2) and token.created_ms < times[-2] - _ms(KEEP)


def find_published(table: str, metadata: TableMetadata, token: str) -> int | None:
    """The snapshot a run already published to main; None when it did not.

    An expired snapshot's property is trusted: expiry says nothing about whether it was published.
    table: its name, for messages. Raises RolledBack when the snapshot is there but main left it behind.
    """
    token = token.partition(SPANS)[0]
    value = metadata.properties.get(PREFIX + token)
    if value is None:
        return None
    if (parsed := _parse(value)) is None:
        raise PublishRefused(
            f"table {table}: property {PREFIX + token} is {value!r}, expected <snapshot id>@<epoch ms>"
        )
    snapshot_id = parsed[0]
    if _left_behind(metadata, snapshot_id):
        current = metadata.current_snapshot_id
        raise RolledBack(
            f"table {table}: run {token} published snapshot {snapshot_id}, and the table was rolled back since: main "
            f"is at {current}, whose history lacks it. Nothing was published again. To bring the run's rows back, "
            "materialize the partitions anew (a new run, not a re-execution from failure)"
        )
    return snapshot_id


def _times(metadata: TableMetadata) -> dict[str, int]:
    """When the runs of the table's tokens were created, epoch ms, by property; 0 for what is no token's value."""
    values = {name: value for name, value in metadata.properties.items() if name.startswith(PREFIX)}
    return {name: (_parse(value) or (0, 0))[1] for name, value in values.items()}


def _ms(span: timedelta) -> int:
    return span // timedelta(milliseconds=1)


def _left_behind(metadata: TableMetadata, snapshot_id: int) -> bool:
    """Whether main's history provably passes the snapshot by.

    Sequence numbers fall on the way to the root, so the walk ends at the first that is not above the snapshot's.
    Where expiry cut the history before that point, nothing is proven.
    """
    snapshots = {s.snapshot_id: s for s in metadata.snapshots}
    wanted = snapshots.get(snapshot_id)
    if wanted is None:
        return False
    here = metadata.current_snapshot()
    while here is not None and (here.sequence_number or 0) > (wanted.sequence_number or 0):
        here = snapshots.get(here.parent_snapshot_id or 0)
    if here is None:
        return metadata.current_snapshot_id is None
    return here.snapshot_id != snapshot_id


def _parse(value: str) -> tuple[int, int] | None:
    snapshot_id, _, epoch_ms = value.partition(SPANS)[0].partition("@")
    return (int(snapshot_id), int(epoch_ms)) if snapshot_id.isdecimal() and epoch_ms.isdecimal() else None
