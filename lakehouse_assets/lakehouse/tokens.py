"""Run tokens on a table: the property that lets a repeated publish know itself, found again and pruned.
Pure functions over table metadata; writing them is part of publish.py's commit."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from collections.abc import Iterable
from itertools import groupby

from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.lakehouse.errors import PublishRefused, RolledBack

PREFIX = "lakehouse.run."
# A token is asked for only while its run may still be resumed: as long as its staged files and receipts live, days.
# A month leaves room, and keeps an hourly table's properties under a thousand.
KEEP_MS = 30 * 24 * 3600 * 1000


def mark(token: str, keys: Sequence[str]) -> str:
    """What marks the publish of these partition keys by a run: a run that published a part of its partitions (others
    had failed) and is resumed publishes all of them under another mark."""
    return f"{token}.{hashlib.sha256(chr(0).join(keys).encode()).hexdigest()[:8]}"


def token_property(mark: str, snapshot_id: int, now_ms: int) -> dict[str, str]:
    """The table property of a run's commit: ``{"lakehouse.run.<mark>": "<snapshot id>@<epoch ms>"}``."""
    return {PREFIX + mark: f"{snapshot_id}@{now_ms}"}


def part_token(token: str, plan: str, chunks: Iterable[int]) -> str:
    """The token of a publish of only some of a run's chunks: ``<token>.<plan>.0-2_5``.

    The run's own token would make a later publish of the rest pass for a repetition. plan: a digest of what the chunks'
    numbers mean, free of dots.
    """
    runs = (list(run) for _, run in groupby(enumerate(sorted(chunks)), key=lambda pair: pair[1] - pair[0]))
    return f"{token}.{plan}." + "_".join(f"{run[0][1]}-{run[-1][1]}" for run in runs)


def published_chunks(
    table: str, metadata: TableMetadata, token: str, plan: str, chunks: Iterable[int]
) -> dict[int, int]:
    """The run's chunks that earlier attempts published, each with its snapshot. chunks: all of the run's.

    Raises as find_published.
    """
    published = {}
    for name in metadata.properties:
        if name.startswith(f"{PREFIX}{token}.{plan}."):
            snapshot_id = find_published(table, metadata, name.removeprefix(PREFIX))
            bounds = [span.split("-") for span in name.rpartition(".")[2].split("_")]
            published |= {n: snapshot_id for first, last in bounds for n in range(int(first), int(last) + 1)}
    if (snapshot_id := find_published(table, metadata, token)) is not None:
        published |= dict.fromkeys(chunks, snapshot_id)
    return published


def outdated(metadata: TableMetadata, now_ms: int) -> list[str]:
    """Names of token properties older than KEEP_MS, or unreadable as such."""
    return [
        name
        for name, value in metadata.properties.items()
        if name.startswith(PREFIX) and (_parse(value) or (0, 0))[1] < now_ms - KEEP_MS
    ]


def find_published(table: str, metadata: TableMetadata, mark: str) -> int | None:
    """The snapshot a run already published to main; None when it did not.

    An expired snapshot's property is trusted: expiry says nothing about whether it was published.
    table: its name, for messages. Raises RolledBack when the snapshot is there but main left it behind.
    """
    value = metadata.properties.get(PREFIX + mark)
    if value is None:
        return None
    if (parsed := _parse(value)) is None:
        raise PublishRefused(f"table {table}: property {PREFIX + mark} is {value!r}, expected <snapshot id>@<epoch ms>")
    snapshot_id = parsed[0]
    if _left_behind(metadata, snapshot_id):
        current = metadata.current_snapshot_id
        raise RolledBack(
            f"table {table}: run {mark} published snapshot {snapshot_id}, and the table was rolled back since: main "
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
    snapshot_id, _, epoch_ms = value.partition("@")
    return (int(snapshot_id), int(epoch_ms)) if snapshot_id.isdecimal() and epoch_ms.isdecimal() else None
