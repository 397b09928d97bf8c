"""Makes a release automatically once all its tables are current."""

from __future__ import annotations

import dagster as dg

from lakehouse_assets.run.updated import HOURLY, when_updated


class FitTogether(dg.AutomationCondition[dg.AssetKey]):
    """True while the tables fit together.

    They do if none of them, nor an asset on a path between two of them, was made from an outdated version of another
    such asset.
    """

    def __init__(self, *tables: dg.AssetKey) -> None:
        self._tables = tables

    @property
    def name(self) -> str:
        """The name in Dagster."""
        return "fit_together"

    @property
    def description(self) -> str:
        """The condition in words, for the UI."""
        return f"{', '.join(key.to_user_string() for key in self._tables)} are made from each other as they are now"

    def get_node_unique_id(self, **_: object) -> str:
        """Returns a constant id: Dagster's own would change with this condition's place in the whole condition."""
        return self.name

    def evaluate(self, context: dg.AutomationContext[dg.AssetKey]) -> dg.AutomationResult[dg.AssetKey]:
        """Returns the candidates if the tables fit together."""
        # Imported here: definitions need not load it.
        from lakehouse_assets.extensions.releases.consistency import Log

        candidates = context.candidate_subset
        log = Log(context.asset_graph_view.instance, context.asset_graph)
        # when_updated() leaves candidates only if something was published: the log is read only then.
        if not candidates.is_empty and any(log.stale_members(self._tables, log.made(self._tables))):
            candidates = context.get_empty_subset()
        return dg.AutomationResult(context, true_subset=candidates)


def when_current(*tables: dg.AssetKey, again: str = HOURLY) -> dg.AutomationCondition[dg.AssetKey]:
    """Requests a release if a table was published since the last one, and all are current.

    So after an update of a table, the release waits for the tables made from it. again: when to retry a failed one
    (cron, UTC).

    Examples:
        >>> from lakehouse_assets import Release, Table, column, when_current
        >>> orders = Table("shop.orders", [column("id", "int")], "shop.steps:orders")
        >>> Release("shop", tables=[orders], automation=when_current(orders.key)).automation.get_label()
        'shop/orders current'
    """
    label = f"{', '.join(key.to_user_string() for key in tables)} current"
    return (when_updated(*tables, again=again) & FitTogether(*tables)).with_label(label)
