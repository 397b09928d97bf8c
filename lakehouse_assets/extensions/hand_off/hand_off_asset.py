"""The declaration of a hand-off, and its Dagster asset."""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import dagster as dg

from lakehouse_assets.declare.columns import schema_of
from lakehouse_assets.declare.options import mistyped
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.aws import client
from lakehouse_assets.environment.catalog import catalog_properties
from lakehouse_assets.errors import DeclarationError, HandOffUnfinished, LakehouseError
from lakehouse_assets.run.jobs import READS, markdown_table
from lakehouse_assets.run.resource import Lakehouse

if TYPE_CHECKING:
    from lakehouse_assets.extensions.hand_off.hand_over import HandOffOrder, HandOffOutcome, Services

LOCATION = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/[^/\s?#]+(/[^/\s?#]+)*")
"""A place of a hand-off. It has a prefix, as a whole bucket may hold other objects."""
GLUE = re.compile(r"[a-z0-9_]{1,100}\.[a-z0-9_]{1,200}")
"""Glue names that Athena accepts (https://docs.aws.amazon.com/athena/latest/ug/tables-databases-columns-names.html);
with a version's name appended, at most 255 characters."""
LEAST_KEEP = timedelta(hours=1)
"""A query that began before the switch reads on: Athena ends queries after 30 minutes by default
(https://docs.aws.amazon.com/athena/latest/ug/service-limits.html)."""


@dataclass(frozen=True)
class HandOff:
    """A table as Hive-style Parquet with a name in Glue, for readers without Iceberg. Each version is complete.

    Examples:
        >>> from lakehouse_assets import Domain, HandOff, Table, column
        >>> orders = Table("shop.orders", [column("day", "date"), column("id", "int")], "shop.steps:orders")
        >>> handed = HandOff("shop", orders, "s3://exports/orders", glue="partners.orders", partitioned_by=["day"])
        >>> [key.to_user_string() for key in Domain("shop", tables=[orders], assets=[handed.asset]).keys]
        ['shop/orders', 'shop/hand_off/partners/orders']
    """

    name: str
    """The domain's name. The asset is ``<name>/hand_off/<database>/<table>``."""
    source: Table
    """The table whose newest snapshot is handed off, of any domain."""
    location: str
    """``s3://bucket/prefix``, below which each version gets a folder. It must not overlap an Iceberg table."""
    glue: str
    """``database.table`` in Glue: the view that readers use. Each version's own table is in the same database."""
    partitioned_by: Sequence[str] = ()
    """The columns that name folders, of the types string, int, long and date: each folder is a Glue partition. Without
    them, a version is one folder."""
    keep: timedelta = timedelta(days=90)
    """How long a version stays after a hand-off saw that readers get another one; at least an hour."""
    replicas: Sequence[str] = ()
    """The prefixes, ``s3://bucket/prefix``, to which S3 replicates ``location``: readers get a version once all have
    it."""
    replicated_within: timedelta = timedelta(minutes=30)
    """How long a run waits for all its replicas together."""
    automation: dg.AutomationCondition[dg.AssetKey] | None = None
    """When Dagster's daemon hands off, such as ``when_current(orders.key)``; None: by hand or by a schedule."""
    owners: Sequence[str] = ()
    """E-mail addresses or ``team:…``, as in Dagster."""
    description: str = ""
    """What readers find in it; Glue shows it, too."""

    def __post_init__(self) -> None:
        of = f"hand-off of {self.name}"
        if problems := [f"{of}: {found}" for found in mistyped(self)]:
            raise DeclarationError(*problems)
        if problems := [f"hand-off {self.glue} of {self.name}: {found}" for found in self._problems()]:
            raise DeclarationError(*problems)

    def _problems(self) -> Iterator[str]:
        from lakehouse_assets.extensions.hand_off.hive import type_problems

        if not GLUE.fullmatch(self.glue):
            yield f"glue is {self.glue!r}, expected database.table of lower-case letters, digits and _"
        for option, place in (("location", self.location), *(("replicas", one) for one in self.replicas)):
            if not LOCATION.fullmatch(place):
                yield f"{option} has {place!r}, expected s3://bucket/prefix without a slash at the end"
        if {self.location} & {*self.replicas} or len({*self.replicas}) < len(self.replicas):
            yield "replicas names a location twice, or the hand-off's own location"
        if self.keep < LEAST_KEEP:
            yield (
                f"keep is {self.keep}, expected at least {LEAST_KEEP}: queries that began before a switch keep reading "
                "the old version"
            )
        if self.replicated_within < timedelta():
            yield f"replicated_within is {self.replicated_within}, it must not be negative"
        yield from type_problems(schema_of(self.source.columns), self.partitioned_by)

    @property
    def key(self) -> dg.AssetKey:
        """The asset's key."""
        return dg.AssetKey([self.name, "hand_off", *self.glue.split(".")])

    @cached_property
    def asset(self) -> dg.AssetsDefinition:
        """The Dagster asset, for the ``assets`` of a Domain."""

        @dg.asset(
            key=self.key,
            description=self.description or f"{self.source.identifier} as Parquet, for readers of {self.glue} in Glue.",
            group_name=self.name,
            owners=list(self.owners),
            kinds={"parquet", "glue"},
            deps=[self.source.key],
            automation_condition=self.automation,
        )
        def hand_off(
            context: dg.AssetExecutionContext, lakehouse: dg.ResourceParam[Lakehouse]
        ) -> dg.MaterializeResult[None]:
            try:
                return self._materialize(context, lakehouse)
            except LakehouseError as error:
                raise dg.Failure(str(error), allow_retries=isinstance(error, HandOffUnfinished)) from error

        return hand_off

    def _materialize(self, context: dg.AssetExecutionContext, lakehouse: Lakehouse) -> dg.MaterializeResult[None]:
        from lakehouse_assets.extensions.hand_off.hand_over import HandOver  # definitions need not load it
        from lakehouse_assets.run.resume import chain_head

        order = self.order(chain_head(context.instance, context.run), lakehouse)
        outcome = HandOver(order, self.services(context.instance, lakehouse)).run()
        which = f"snapshot {outcome.plan.snapshot_id}" if outcome.landed else "which is newer than this run's"
        context.log.info(f"{self.glue}: readers get version {outcome.current}, {which}")
        if outcome.not_removed:
            context.log.warning(f"{self.glue}: {outcome.not_removed}")
        return dg.MaterializeResult(
            metadata=ui_metadata(outcome), data_version=dg.DataVersion(f"{outcome.plan.snapshot_id}")
        )

    def order(self, token: str, lakehouse: Lakehouse) -> "HandOffOrder":
        """Returns what a run hands off. token: of the first run in its chain of re-executions from failure."""
        from lakehouse_assets.extensions.hand_off.hand_over import HandOffOrder

        warehouse = catalog_properties(lakehouse.settings).get("warehouse", "")
        # A REST catalog's warehouse may be a name, which is no place to keep apart from.
        is_place = re.match("s3[an]?://|file:|/", warehouse)
        return HandOffOrder(
            key=self.key.to_user_string(),
            table=self.source.identifier,
            location=self.location,
            glue=self.glue,
            partitioned_by=tuple(self.partitioned_by),
            keep=self.keep,
            replicas=tuple(self.replicas),
            replicated_within=self.replicated_within,
            description=self.description,
            token=token,
            apart_from=(lakehouse.settings.staging, *([warehouse] if is_place else [])),
        )

    def services(self, instance: dg.DagsterInstance, lakehouse: Lakehouse) -> "Services":
        """Opens clients and records. Raises SettingsError without a region."""
        from pyiceberg.io import load_file_io

        from lakehouse_assets.extensions.hand_off.hand_over import Services
        from lakehouse_assets.extensions.hand_off.records import Records
        from lakehouse_assets.maintenance.collect.needed import chains
        from lakehouse_assets.storage.objects import objects_at, raw_client
        from lakehouse_assets.storage.place import place_of

        properties = catalog_properties(lakehouse.settings)
        folder = place_of(lakehouse.settings.staging).child(f"hand_off/{'/'.join(self.key.path)}")
        return Services(
            catalog=lakehouse.catalog(),
            io=load_file_io(properties, self.location),
            s3=raw_client(properties),
            glue=client("glue"),
            glue_once=client("glue", attempts=1),
            records=Records(objects_at(properties, folder)),
            chains_of=partial(chains, instance),
        )


def ui_metadata(outcome: "HandOffOutcome") -> dict[str, Any]:
    """Returns a hand-off's metadata."""
    plan, written = outcome.plan, outcome.written
    metadata: dict[str, Any] = {
        "path": outcome.version.location,
        "glue": plan.glue,
        "version": outcome.version.name,
        "dagster/row_count": written.rows,
        "bytes": written.size,
        "files": len(written.files),
        "snapshot_id": str(plan.snapshot_id),
        # For the trace: a hand-off need not be of the table's last run.
        READS: {plan.table: str(plan.snapshot_id)},
        "removed": [one.location for one in outcome.removed],
    }
    if outcome.arrived:
        rows = [(one.location, str(one.waited), str(one.looks)) for one in outcome.arrived]
        metadata["replicas"] = dg.MetadataValue.md(markdown_table(("replica", "waited", "looks"), rows))
    if not outcome.landed:
        metadata["readers_have_newer"] = outcome.current
    if outcome.not_removed:
        metadata["not_removed"] = outcome.not_removed
    return metadata
