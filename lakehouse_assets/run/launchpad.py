"""Shapes how a job of one op shows in Dagster's launchpad: the op's own fields, with what they mean beside them.

The fields are declared where the job is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg


def own_fields(op: str, config: type[dg.Config]) -> dg.ConfigMapping:
    """Returns a config mapping by which the fields of its op alone configure a job.

    Without it a person fills them in three levels deep, where the launchpad no longer shows their descriptions, beside
    loggers and resources of which none can be configured, such as the IO manager that no op here uses.

    op: the op's name. config: the op's config class.
    """

    @dg.config_mapping(config_schema=config.to_fields_dict())
    def of_op(fields: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"ops": {op: {"config": fields}}}

    return of_op
