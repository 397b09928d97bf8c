"""Chooses what of the inbox nobody will run: what is not there, is of no declared table, or always fails.

The module is pure: tick.py sends the letters to the dead-letter queue. What a message may ask for at all is route.py's.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from lakehouse_assets.inbox.inbox import Item
from lakehouse_assets.keys_text import keys_text
from lakehouse_assets.queue.route import Wanted

PATIENCE = timedelta(days=14)
"""How long the inbox keeps a partition that is not there: as long as SQS would keep its message at most
(https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/quotas-messages.html)."""
DEPLOYED = timedelta(hours=1)
"""The time after which a deployment that declares a table has come, if one does."""
AT_ONCE = 1000
"""The most partitions that one tick gives up, the oldest first."""
LONGEST = 1_000_000
"""The most bytes of a letter's keys as JSON, where a character takes one to six: SQS takes 1 MiB with attributes."""
LISTED = 5


@dataclass(frozen=True)
class RequestLetter:
    """A message for the dead-letter queue: a request that asks for these partitions once more, if it is sent again."""

    body: str
    reason: str
    names: frozenset[str]
    """The names of the inbox items that it stands for."""


def given_up(
    items: Mapping[str, Item],
    keys: Mapping[str, Collection[str]],
    failing: Mapping[Wanted, str],
    now: float,
    *,
    is_full: bool,
) -> list[RequestLetter]:
    """Chooses the items that must not wait any longer, and writes the letters about them.

    If the inbox is full, partitions that can't run make room for those that can, however young they are. Only those of
    tables that are not declared here keep waiting for DEPLOYED, in which a deployment may bring their tables.

    items: what waits, by name. keys: the partitions that each declared table has by now. failing: the partitions that
    are not run because runs have failed, with the reason. now: seconds since 1970. is_full: whether the inbox is full.
    """
    due: list[tuple[int, str, str]] = []
    for name, item in items.items():
        is_declared = item.table in keys
        is_there = is_declared and item.key in keys[item.table]
        in_full = timedelta() if is_declared else DEPLOYED
        patience = (in_full if is_full else PATIENCE).total_seconds()
        if not is_there and item.received_ms <= (now - patience) * 1000:
            problem = "is not there" if is_declared else "is of a table that is not declared here"
            due.append((item.received_ms, name, problem))
        elif is_full and (item.table, item.key) in failing:
            due.append((item.received_ms, name, failing[item.table, item.key]))
    why = "the inbox is full" if is_full else f"{PATIENCE.days} days after it came"
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for _, name, problem in sorted(due)[:AT_ONCE]:
        found[items[name].table, f"{problem}; {why}"].append(name)
    return [
        _letter(table, {name: items[name].key for name in some}, reason)
        for (table, reason), names in found.items()
        for some in _parts(names, items)
    ]


def _parts(names: Sequence[str], items: Mapping[str, Item]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    size = 0
    for name in names:
        bytes_ = len(f"{_json(items[name].key)}, ".encode())
        size += bytes_
        if parts[-1] and size > LONGEST:
            parts.append([])
            size = bytes_
        parts[-1].append(name)
    return parts


def _letter(table: str, key_of: Mapping[str, str], reason: str) -> RequestLetter:
    """Writes one letter. key_of: the partition keys by the names of their items."""
    keys = sorted(set(key_of.values()))
    asked = {"table": table, "partitions": keys} if any(keys) else {"table": table}
    said = f"table {table}: {keys_text(keys, listed=LISTED)} {reason}"
    return RequestLetter(_json(asked), said, frozenset(key_of))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
