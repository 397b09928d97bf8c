"""Runs the `dagster` command without two warnings of `dagster dev` that a user of `make ui` can do nothing about.

Everything else is Dagster's, the options too: ``python -m lakehouse_assets.cli.quiet_dagster dev …``.
"""

from __future__ import annotations

import logging
import warnings

from dagster import SupersessionWarning
from dagster._cli import main

if __name__ == "__main__":
    # `dg dev` does the same with a workspace file, but no package that a run needs contains it.
    warnings.filterwarnings("ignore", "Function `dev_command` is superseded", SupersessionWarning)
    # Dagster warns of the dagster.yaml in the working directory, but DAGSTER_HOME has a link to the same file. In
    # another working directory, .env and .pyiceberg.yaml would not be found.
    logging.getLogger("dagster").addFilter(
        lambda record: not record.getMessage().startswith("Found a dagster instance configuration value")
    )
    main()  # type: ignore[no-untyped-call]  # Dagster declares no types for it
