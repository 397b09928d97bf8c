"""Run tokens on a table: the property by which a repeated publish finds the commit of the first, and its pruning.
Pure functions of table metadata; publish.py writes the property."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.errors import PublishRefused, RolledBack
from resources.catalog import RUN_PROPERTIES

PREFIX = RUN_PROPERTIES
# Separates a token's name from the chunks that it stands for. These go into the property's value: Glue takes 255
# characters for a name, 512,000 for a value (https://docs.aws.amazon.com/glue/latest/webapi/API_TableInput.html).
SPANS = ":"
RESUMABLE = timedelta(days=14)
"""How long after its creation a run may be resumed by a re-execution from failure."""
# Longer by what a resumed run may wait and work. An hourly table has fewer than a thousand such properties.
KEEP = RESUMABLE + timedelta(days=16)
KEEP_MS = KEEP // timedelta(milliseconds=1)
# So many are kept whatever their age, so that a run created under a clock far ahead prunes no others. An hourly table
# gets as many in a month.
NEWEST = 750


@dataclass(frozen=True)
class RunToken:
    """Identifies a run's commit. text: the id of the run at the head of the resume chain, and the part of the run that
    is published, if it is not all. created: when Dagster's storage created that run (aware): one clock orders a table's
    tokens, whatever the clocks of the hosts that publish."""

    text: str
    created: datetime

    @property
    def created_ms(self) -> int:
        return int(self.created.timestamp() * 1000)


def token_property(token: RunToken, snapshot_id: int) -> dict[str, str]:
    """The table property of a run's commit: ``{"lakehouse.run.<token>": "<snapshot id>@<epoch ms>[:<chunks>]"}``."""
    name, colon, spans = token.text.partition(SPANS)
    return {PREFIX + name: f"{snapshot_id}@{token.created_ms}{colon}{spans}"}


def outdated(metadata: TableMetadata, token: RunToken) -> list[str]:
    """Names of the token properties that a commit with ``token`` prunes: those that are older by KEEP than ``token``
    and than the table's newest token, and those that can't be read. The NEWEST newest always stay."""
    times = _times(metadata)
    oldest = min(token.created_ms, max(times.values(), default=0)) - KEEP_MS
    newest = set(sorted(times, key=lambda name: times[name], reverse=True)[:NEWEST])
    return [name for name, at in times.items() if not at or (at < oldest and name not in newest)]


def is_forgotten(metadata: TableMetadata, token: RunToken) -> bool:
    """Whether the token's property may have been pruned. outdated() prunes one only if NEWEST others stay, two of them
    newer by more than KEEP."""
    times = sorted(_times(metadata).values())
    return len(times) >= max(NEWEST, 2) and token.created_ms < times[-2] - KEEP_MS


def find_published(table: str, metadata: TableMetadata, token: str) -> int | None:
    """The snapshot that a run has published to main.

    The property is trusted if its snapshot has expired: the snapshot was published all the same.
    table: its name, for messages. Raises RolledBack if the snapshot is there but not in main's history.
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
    if _is_rolled_back(metadata, snapshot_id):
        current = metadata.current_snapshot_id
        raise RolledBack(
            f"table {table}: run {token} published snapshot {snapshot_id}, and the table was rolled back since: main "
            f"is at {current}, whose history lacks it. Nothing was published again. To have the run's rows back, "
            "materialize the partitions anew (a new run, not a re-execution from failure)"
        )
    return snapshot_id


def _times(metadata: TableMetadata) -> dict[str, int]:
    """When each token's run was created, in epoch ms, by property; 0 if its value can't be read."""
    values = {name: value for name, value in metadata.properties.items() if name.startswith(PREFIX)}
    return {name: (_parse(value) or (0, 0))[1] for name, value in values.items()}


def _is_rolled_back(metadata: TableMetadata, snapshot_id: int) -> bool:
    """Whether the snapshot is provably not in main's history.

    Sequence numbers fall towards the root, so the walk ends at the first that is not above the snapshot's. Nothing is
    proven if expiry cut the history before.
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
