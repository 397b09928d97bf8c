"""Has Dagster's daemon make a release once all its tables are current."""

from __future__ import annotations

import dagster as dg

from lakehouse_assets.run.updated import HOURLY, when_updated


class FitTogether(dg.AutomationCondition[dg.AssetKey]):
    """Holds while none of the tables was made from another version of an input than is there now.

    Looked at are the inputs that are among the tables, or lie between them.
    """

    def __init__(self, *tables: dg.AssetKey) -> None:
        self._tables = tables

    @property
    def name(self) -> str:
        """The condition's name in Dagster."""
        return "fit_together"

    @property
    def description(self) -> str:
        """The condition in words that name the tables, as Dagster shows it."""
        return f"{', '.join(key.to_user_string() for key in self._tables)} are made from each other as they are now"

    def get_node_unique_id(self, **_: object) -> str:
        """Returns the same id wherever the condition is used."""
        return self.name

    def evaluate(self, context: dg.AutomationContext[dg.AssetKey]) -> dg.AutomationResult[dg.AssetKey]:
        """Returns the candidates, or nothing."""
        from lakehouse_assets.releases.consistency import Log  # definitions need not load it

        candidates = context.candidate_subset
        log = Log(context.asset_graph_view.instance, context.asset_graph)
        # The log is read only where something was published.
        if not candidates.is_empty and any(log.stale_members(self._tables, log.made(self._tables))):
            candidates = context.get_empty_subset()
        return dg.AutomationResult(context, true_subset=candidates)


def when_current(*tables: dg.AssetKey, again: str = HOURLY) -> dg.AutomationCondition[dg.AssetKey]:
    """Requests a release when one of its tables was published since the last one, and all of them are current.

    So a release waits for what is made from an updated table, and for the other tables that are. again: when one is
    requested again that has failed (cron, UTC).

    Example:
        >>> from lakehouse_assets import Release, Table, column, when_current
        >>> orders = Table("shop.orders", [column("id", "int")], "shop.steps:orders")
        >>> Release("shop", tables=[orders], automation=when_current(orders.key)).automation.get_label()
        'shop/orders current'
    """
    label = f"{', '.join(key.to_user_string() for key in tables)} current"
    return (when_updated(*tables, again=again) & FitTogether(*tables)).with_label(label)
