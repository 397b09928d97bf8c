"""What a person sees of the jobs in the launchpad: their own fields with descriptions, and nothing else to fill in."""

from __future__ import annotations

from dataclasses import replace

import dagster as dg
import pytest

from lakehouse_assets.commit.owner import TAKE_OVER
from lakehouse_assets.environment.settings import QueueSettings, Settings
from lakehouse_assets.extensions.queue.extension import Queue
from lakehouse_assets.run.asset import PLAN
from lakehouse_assets.run.in_flight import DROP_MISSING, MAINTENANCE, REDRIVE, RESTORE
from tests.support.tables import numbers
from tests.support.whole_location import build_defs

QUEUE = QueueSettings("http://127.0.0.1:1/000000000000/q", "http://127.0.0.1:1/000000000000/dead")


def fields_of(job: dg.JobDefinition) -> dict[str, dg.Field]:
    return dict(job.run_config_schema.config_type.fields)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [MAINTENANCE, PLAN, RESTORE, DROP_MISSING, TAKE_OVER])
def test_a_job_shows_its_own_fields_with_their_meaning_and_values(name: str) -> None:
    fields = fields_of(build_defs().resolve_job_def(name))
    assert not fields.keys() & {"ops", "resources", "loggers", "execution"}
    for field in fields.values():
        assert field.description
        assert field.default_provided


def test_so_does_the_queues(settings: Settings) -> None:
    defs = Queue().definitions([numbers()], replace(settings, queue=QUEUE))
    (job,) = [job for job in defs.jobs or () if isinstance(job, dg.JobDefinition) and job.name == REDRIVE]
    assert all(field.description and field.default_provided for field in fields_of(job).values())
    assert set(fields_of(job)) == {"table", "keys", "parked", "dead_letters", "dry_run"}
