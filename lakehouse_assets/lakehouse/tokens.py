"""Run tokens on a table: the property that lets a repeated publish know itself, found again and pruned.
Pure functions over table metadata; writing them is part of publish.py's commit."""

from __future__ import annotations

from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.lakehouse.errors import PublishRefused, RolledBack

PREFIX = "lakehouse.run."
# Between a token's name and which chunks of the run it stands for. That goes into the property's value: Glue takes 255
# characters for a name, 512,000 for a value (https://docs.aws.amazon.com/glue/latest/webapi/API_TableInput.html).
SPANS = ":"
# A token is asked for only while its run may still be resumed: as long as its staged files and receipts live, days.
# A month leaves room, and keeps an hourly table's properties under a thousand.
KEEP_MS = 30 * 24 * 3600 * 1000


def token_property(token: str, snapshot_id: int, now_ms: int) -> dict[str, str]:
    """The table property of a run's commit: ``{"lakehouse.run.<token>": "<snapshot id>@<epoch ms>"}``, and behind the
    value what the token has behind its name."""
    name, colon, spans = token.partition(SPANS)
    return {PREFIX + name: f"{snapshot_id}@{now_ms}{colon}{spans}"}


def outdated(metadata: TableMetadata, now_ms: int) -> list[str]:
    """Names of token properties older than KEEP_MS, or unreadable as such."""
    return [
        name
        for name, value in metadata.properties.items()
        if name.startswith(PREFIX) and (_parse(value) or (0, 0))[1] < now_ms - KEEP_MS
    ]


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
