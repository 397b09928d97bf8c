"""Declares a release, and makes its Dagster asset."""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster._core.definitions.assets.job.asset_job import JobScopedAssetGraph

from lakehouse_assets.declare.options import mistyped
from lakehouse_assets.declare.table import Table
from lakehouse_assets.errors import DeclarationError, LakehouseError, PublishContended
from lakehouse_assets.extensions.releases.pointer import MOST, pointer_identifier
from lakehouse_assets.run.jobs import READS, markdown_table
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.run.run_tags import RunTags

if TYPE_CHECKING:
    from lakehouse_assets.extensions.releases.publish_release import Order, ReleaseOutcome


@dataclass(frozen=True)
class Release:
    """Tables of a domain that readers get together, all as of the same release.

    Examples:
        >>> from lakehouse_assets import Domain, Release, Table, column
        >>> orders = Table("shop.orders", [column("id", "int")], "shop.steps:orders")
        >>> days = Table("shop.days", [column("day", "date")], "shop.steps:days", deps=[orders.key])
        >>> shop = Domain("shop", tables=[orders, days], assets=[Release("shop", tables=[orders, days]).asset])
        >>> [key.to_user_string() for key in shop.keys]
        ['shop/orders', 'shop/days', 'shop/release']
    """

    name: str
    """The domain's. The asset is ``<name>/release``, the table of released snapshots ``<name>.releases``; readers call
    ``release("<name>")``."""
    tables: Sequence[Table]
    """Its members, of this domain or others."""
    keep: int = 10
    """How many of the last releases stay readable, at least 2."""
    keep_for: timedelta = timedelta(days=30)
    """How long older releases stay readable. At most 1,000 are kept in all."""
    automation: dg.AutomationCondition[dg.AssetKey] | None = None
    """When Dagster's daemon releases, such as ``when_current(orders.key, days.key)``; None: by hand or schedule."""
    owners: Sequence[str] = ()
    """E-mail addresses, or ``team:…``, as Dagster shows them."""
    description: str = ""
    """What readers find in it, in Markdown."""

    def __post_init__(self) -> None:
        if problems := [f"release of {self.name}: {found}" for found in mistyped(self)] or [*self._problems()]:
            raise DeclarationError(*problems)

    def _problems(self) -> Iterator[str]:
        of = f"release of {self.name}"
        identifiers = [table.identifier for table in self.tables]
        if not identifiers:
            yield f"{of}: it has no tables; name those that readers get together"
        if twice := sorted({one for one in identifiers if identifiers.count(one) > 1}):
            yield f"{of}: {', '.join(twice)} is named twice; name each table once"
        if (pointer := pointer_identifier(self.name)) in identifiers:
            yield f"{of}: {pointer} names the released snapshots, so it can't be a member"
        if not 2 <= self.keep <= MOST:
            yield f"{of}: keep is {self.keep}, expected 2 to {MOST}: readers may request the previous one"
        if self.keep_for < timedelta():
            yield f"{of}: keep_for is {self.keep_for}, it must not be negative"

    @cached_property
    def asset(self) -> dg.AssetsDefinition:
        """The Dagster asset, for the ``assets`` of a Domain."""

        @dg.asset(
            key=[self.name, "release"],
            description=self.description or f"The tables of {self.name} that readers get together, by one pointer.",
            group_name=self.name,
            owners=list(self.owners),
            kinds={"iceberg"},
            deps=[table.key for table in self.tables],
            automation_condition=self.automation,
        )
        def release(
            context: dg.AssetExecutionContext, lakehouse: dg.ResourceParam[Lakehouse]
        ) -> dg.MaterializeResult[None]:
            try:
                return self._materialize(context, lakehouse)
            except LakehouseError as error:
                raise dg.Failure(str(error), allow_retries=isinstance(error, PublishContended)) from error

        return release

    def _materialize(self, context: dg.AssetExecutionContext, lakehouse: Lakehouse) -> dg.MaterializeResult[None]:
        # Imported here: definitions need not load them.
        from lakehouse_assets.extensions.releases.consistency import Log
        from lakehouse_assets.extensions.releases.publish_release import publish_release, tidy

        catalog, order = lakehouse.catalog(), self._order(context.run)
        of_job = context.job_def.asset_layer.asset_graph
        assert isinstance(of_job, JobScopedAssetGraph)
        # The job's own graph lacks assets between the tables that the run does not materialize.
        log = Log(context.instance, of_job.source_asset_graph)
        outcome = publish_release(catalog, order, log)
        number = outcome.release.number
        context.log.info(f"{self.name}: {'made' if outcome.is_new else 'nothing has changed since'} release {number}")
        try:
            tidy(catalog, order, outcome.named, lambda run_ids: _unfinished(context.instance, run_ids))
        # Any error of catalogs: readers have the release already.
        except Exception as error:
            context.log.warning(f"{self.name}: tags of old releases will be removed by the next release: {error!r}")
        metadata = ui_metadata(outcome) | ({"released_again": order.again} if order.again is not None else {})
        return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(outcome.release.version))

    def _order(self, run: dg.DagsterRun) -> "Order":
        from lakehouse_assets.extensions.releases.publish_release import Order

        tags = RunTags.of(run.tags)
        again, anyway = tags.release_again, tags.release_anyway
        return Order(self.name, self.tables, run.run_id, self.keep, self.keep_for, again, anyway)


def _unfinished(instance: dg.DagsterInstance, run_ids: Collection[str]) -> set[str]:
    """Returns the runs that are unfinished. Runs that Dagster does not know count as finished."""
    runs = instance.get_runs(dg.RunsFilter(run_ids=[*run_ids])) if run_ids else []
    return {run.run_id for run in runs if not run.is_finished}


def ui_metadata(outcome: "ReleaseOutcome") -> dict[str, Any]:
    """Returns the materialization's metadata."""
    before = {member.table: member for member in outcome.before.members} if outcome.before else {}
    rows = []
    for member in outcome.release.members:
        old = before.get(member.table)
        if old is None:
            since = "new"
        elif old.snapshot_id == member.snapshot_id and old.uuid == member.uuid:
            since = "unchanged"
        else:
            since = "" if old.rows is None or member.rows is None else f"{member.rows - old.rows:+,}"
        counted = "not counted" if member.rows is None else f"{member.rows:,}"
        rows.append((member.table, str(member.snapshot_id), counted, since))
    manifest = markdown_table(("table", "snapshot", "rows", "since the last release"), rows)
    metadata: dict[str, Any] = {
        "release": outcome.release.number,
        # For the trace: the released snapshots need not be those of the tables' last runs.
        READS: {member.table: str(member.snapshot_id) for member in outcome.release.members},
        "released_at": dg.MetadataValue.timestamp(outcome.release.released_at),
        "is_new": outcome.is_new,
        "manifest": dg.MetadataValue.md(manifest),
    }
    if outcome.misfits:
        metadata["does_not_fit_together"] = dg.MetadataValue.md("\n".join(f"- {one}" for one in outcome.misfits))
    return metadata
