"""The declarations of the tables of trade: customs trade statistics by month, and each write mode once.

The rows are computed in steps.py.
"""

from __future__ import annotations

import dagster as dg

from lakehouse_assets import Append, FullRefresh, Merge, Rewrites, Table, column
from lakehouse_assets.domains.trade import shape

OWNERS = ("team:trade-data",)
LANDING = dg.AssetKey(["trade", "landing"])
STEPS = "lakehouse_assets.domains.trade.steps"
YEARS = dg.StaticPartitionsDefinition(shape.YEARS)
MONTHS = dg.StaticPartitionsDefinition(shape.MONTHS)
FIGURES = (
    column("exp_imp", "string", "1 export, 2 import", required=True),
    column("Year", "int", "Year", required=True),
    column("month", "int", "Month, 1 to 12", required=True),
    column("ym", "string", "Year and month, YYYYMM", required=True),
    column("Country", "string", "Code of the partner country, see trade.countries", required=True),
    column("Custom", "string", "Code of the customs office", required=True),
    column("hs2", "string", "Chapter of the goods", required=True),
    column("hs4", "string", "Heading of the goods", required=True),
    column("hs6", "string", "Subheading of the goods", required=True),
    column("hs9", "string", "Statistical code of the goods", required=True),
    column("Q1", "long", "Quantity in the first unit"),
    column("Q2", "long", "Quantity in the second unit"),
    column("Value", "long", "Value, thousand yen", required=True),
)

rejected = Table(
    identifier="trade.rejected",
    description=(
        "Lines of the customs files that can't be read, up to one in a hundred of a file: more fail the run. Lines of "
        "a file that are the same are one row, and what a later file has mended stays."
    ),
    columns=(
        column("file", "string", "The file's name", required=True),
        column("line", "string", "The line", required=True),
        column("reason", "string", "What is wrong with it", required=True),
    ),
    step=f"{STEPS}:rejected",
    partitions=YEARS,
    write_mode=Append(dedup_on=("file", "line")),
    deps=(LANDING,),
    owners=OWNERS,
    kinds=frozenset({"bronze"}),
)

customs = Table(
    identifier="trade.customs",
    description=(
        "Exports and imports by month, country, customs office and goods, as they were first published. Lines that "
        "can't be read are left out, and are in trade.rejected once that was run for their year."
    ),
    columns=FIGURES,
    step=f"{STEPS}:customs",
    partitions=MONTHS,
    partitioned_by=("ym",),
    sorted_by=("exp_imp", "hs9"),
    unique=shape.KEY,
    checks={"no negative value": "Value >= 0"},
    deps=(LANDING, dg.AssetDep(rejected.key, partition_mapping=dg.AllPartitionMapping())),
    owners=OWNERS,
    kinds=frozenset({"bronze"}),
)

revisions = Table(
    identifier="trade.revisions",
    description=(
        "The figures of trade.customs with the latest of the corrections that came since, without those that were "
        "deleted. A correction is a line of a CSV in revisions/: its op is U or D, and the greatest revision counts."
    ),
    columns=FIGURES,
    step=f"{STEPS}:revisions",
    partitions=MONTHS,
    partitioned_by=("ym",),
    sorted_by=("exp_imp", "hs9"),
    write_mode=Merge(
        shape.KEY,
        delete_when="op = 'D'",
        order_by="revision",
        by_partition=True,
        rewrites=Rewrites.MERGE_ON_READ,  # few of a month's figures are ever corrected
    ),
    deps=(LANDING, customs.key),
    reads=("trade.revisions",),  # what is there and in neither of its inputs any more is deleted
    owners=OWNERS,
    kinds=frozenset({"silver"}),
)

countries = Table(
    identifier="trade.countries",
    description="Names of the partner countries.",
    columns=(column("Country", "string", "Code", required=True), column("name", "string", "Name", required=True)),
    step=f"{STEPS}:countries",
    write_mode=FullRefresh(),
    unique=("Country",),
    deps=(LANDING,),
    owners=OWNERS,
    kinds=frozenset({"bronze"}),
)
