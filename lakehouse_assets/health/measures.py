"""A table's numbers beside the limits at which they ask for work, as text: why nothing is to be mended. Pure.

The numbers and limits are demand.py's; what is wrong with a table is said in findings.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lakehouse_assets.declare.care import Level
from lakehouse_assets.health.demand import gains, limit, most_manifests, number
from lakehouse_assets.health.health import TableHealth
from lakehouse_assets.health.text import size_text
from lakehouse_assets.health.thresholds import DEFAULTS, Thresholds


def measures(health: TableHealth, thresholds: Thresholds = DEFAULTS) -> Mapping[Level, str]:
    """Says by level what was found and from how much on that asks for work: ``2 % of 10 %``.

    Of the levels that rewrite partitions it is the number of the worst one, among those that would gain by a rewrite.
    """
    deletes = health.total("delete_files")
    sizes = f"{size_text(health.metadata_size)} of {size_text(thresholds.metadata_size.warn)}"
    manifests = max(int(thresholds.manifests.warn), most_manifests(health, thresholds) + 1)
    return {
        Level.DELETES: _worst(health, Level.DELETES, thresholds, lambda share: f"{share * 100:.3g} %")
        + (f" of the rows of a partition, {deletes:,} delete files" if deletes else ""),
        Level.UNDERSIZED: _worst(health, Level.UNDERSIZED, thresholds, lambda found: size_text(found * health.target)),
        Level.FRAGMENTS: _worst(health, Level.FRAGMENTS, thresholds, lambda found: f"{found:,.0f}"),
        Level.MANIFESTS: f"{health.manifests:,} of {manifests:,}",
        Level.EXPIRE: f"{health.snapshots:,} of {thresholds.snapshots.warn:,.0f} snapshots, metadata.json {sizes}",
    }


def _worst(health: TableHealth, level: Level, thresholds: Thresholds, text: Callable[[float], str]) -> str:
    numbers = (number(level, p, health.target) for p in health.partitions if gains(level, p, health.target))
    return f"{text(max(numbers, default=0))} of {text(limit(level, thresholds).warn)}"
