"""The snapshots that runs have pinned, by the metadata copies in their folders."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping

from lakehouse_assets.inputs.pins import COPY
from lakehouse_assets.maintenance.collect.needed import HELD, Chain, Periods, RunFiles, state_of

# How the key of a pinned metadata copy ends.
PIN = re.compile("/" + COPY.replace(".", r"\.").format(table=r"(?P<table>[^/]+)", snapshot=r"(?P<snapshot>\d+)") + "$")


def pinned_snapshots(
    table: str,
    leavings: Iterable[RunFiles],
    chains_of: Callable[[Collection[str]], Mapping[str, Chain]],
    now_ms: int,
) -> set[int]:
    """Returns the snapshots of a table that alive or resumable runs have pinned.

    leavings: what the runs of each table that reads it have left in storage. chains_of: finds runs by token.
    """
    pins: dict[str, set[int]] = defaultdict(set)
    newest: dict[str, int] = {}
    for of_reader in leavings:
        for token, ms in of_reader.newest_ms.items():
            newest[token] = max(ms, newest.get(token, 0))
        for token, files in of_reader.receipts.items():
            found = (PIN.search(file.place.key) for file in files)
            pins[token] |= {int(pin["snapshot"]) for pin in found if pin and pin["table"] == table}
    known = chains_of(pins.keys())
    held = (one for one in pins if state_of(known.get(one), newest[one], now_ms, Periods()) in HELD)
    return set[int]().union(*(pins[token] for token in held))
