"""Opening the worker's Pipes session, wherever its context lies: a file, the environment, S3.
No work and no messages of its own."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager

from dagster_pipes import (
    DAGSTER_PIPES_CONTEXT_CLI_ARGUMENT,
    PipesCliArgsParamsLoader,
    PipesContext,
    PipesEnvVarParamsLoader,
    PipesParamsLoader,
    PipesS3ContextLoader,
    PipesS3MessageWriter,
    open_dagster_pipes,
)

# A receipt should not wait for the writer's own 10 s.
FLUSH_SECONDS = 1.0


def open_session() -> AbstractContextManager[PipesContext]:
    """The session this process was started for: told by arguments (spark-submit's) or environment."""
    told_by_arguments = any(DAGSTER_PIPES_CONTEXT_CLI_ARGUMENT in argument for argument in sys.argv)
    params: PipesParamsLoader = PipesCliArgsParamsLoader() if told_by_arguments else PipesEnvVarParamsLoader()
    if "bucket" not in params.load_context_params():
        return open_dagster_pipes(params_loader=params)
    import boto3

    s3 = boto3.client("s3")
    return open_dagster_pipes(
        params_loader=params,
        context_loader=PipesS3ContextLoader(s3),
        message_writer=PipesS3MessageWriter(s3, interval=FLUSH_SECONDS),
    )
