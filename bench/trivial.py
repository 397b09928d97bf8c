"""The code location that loading is compared with: one asset, nothing else."""

import dagster as dg


@dg.asset
def trivial() -> None:
    """Does nothing."""


defs = dg.Definitions(assets=[trivial])
