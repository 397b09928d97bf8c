"""The `dagster` command without two warnings of `dagster dev` that nobody who types `make ui` can act on.
Everything else is Dagster's own, its options too: ``python -m lakehouse_assets.cli.quiet_dagster dev …``."""

from __future__ import annotations

import logging
import warnings

from dagster import SupersessionWarning
from dagster._cli import main

if __name__ == "__main__":
    # `dg dev` runs the same with a workspace file, and is in no package that a run needs.
    warnings.filterwarnings("ignore", "Function `dev_command` is superseded", SupersessionWarning)
    # The dagster.yaml beside us is the one in DAGSTER_HOME: home.prepare links it. Another working directory would
    # spare the warning, and lose the .env and .pyiceberg.yaml in this one.
    logging.getLogger("dagster").addFilter(
        lambda record: not record.getMessage().startswith("Found a dagster instance configuration value")
    )
    main()
