"""Launchers of job runs over HTTP against strict services whose jobs are processes: one job per attempt, and its end.
What only one of the services does is in test_emr_serverless.py and test_emr_eks.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakehouse_assets.environment.aws import client
from lakehouse_assets.environment.launchers.base import Handle, NotStarted
from tests.support.fakes.wire import Fault
from tests.support.job_run_launchers import Site, sleeping_site
from tests.unit.extensions.aws.test_emr_launcher import LOST_ANSWER, PIPES, THROTTLED, attempt

DESCRIBED = {"emr_serverless": "GetJobRun", "emr_eks": "DescribeJobRun"}
# Lists of EMR Serverless take no name.
PAGES_OF_60 = {"emr_serverless": 2, "emr_eks": 1}


@pytest.fixture(params=DESCRIBED)
def site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with sleeping_site(request.param, tmp_path, monkeypatch) as site:
        yield site


# Exactly one


@pytest.mark.parametrize("fault", [THROTTLED, LOST_ANSWER], ids=["throttled", "answer lost"])
def test_one_job_whatever_becomes_of_the_answer(site: Site, fault: Fault) -> None:
    site.service.fail("StartJobRun", fault)
    handle = site.launcher().submit(attempt(), PIPES)
    assert list(site.fake.jobs) == [handle.id]


def test_the_same_attempt_has_the_same_job_for_another_process_and_another_attempt_its_own(site: Site) -> None:
    handle = site.launcher().submit(attempt(), PIPES)
    assert site.launcher().submit(attempt(), PIPES) == handle
    assert site.launcher().find(attempt()) == handle
    assert site.launcher().find(attempt(number=2)) is None
    assert site.launcher().submit(attempt(number=2), PIPES) != handle


def test_a_run_that_resumes_another_finds_its_job_though_its_tags_differ(site: Site) -> None:
    handle = site.launcher().submit(attempt(tags={"lakehouse:run": "first"}), PIPES)
    assert site.launcher().submit(attempt(tags={"lakehouse:run": "second"}), PIPES) == handle
    assert len(site.fake.jobs) == 1


def test_a_job_among_many_is_found(site: Site) -> None:
    launcher = site.launcher()
    handles = [launcher.submit(attempt(chunk), PIPES) for chunk in range(60)]
    site.service.calls.clear()
    assert launcher.find(attempt(3)) == handles[3]
    assert site.service.calls == {"ListJobRuns": PAGES_OF_60[site.compute]}


# What ends mean


def test_polling_is_one_call_for_all_that_run(site: Site) -> None:
    launcher = site.launcher()
    handles = [launcher.submit(attempt(chunk), PIPES) for chunk in range(30)]
    site.fake.tick()
    site.service.calls.clear()
    assert launcher.poll(handles) == {}
    assert site.service.calls == {"ListJobRuns": 1}
    site.fake.lag = 60
    assert launcher.poll(handles[:2]) == {}  # what a list does not know is asked for by itself
    assert site.service.calls[DESCRIBED[site.compute]] == 2


def test_a_job_that_waits_for_capacity_has_not_begun(site: Site) -> None:
    launcher = site.launcher()
    site.fake.capacity = 1
    handles = [launcher.submit(attempt(chunk), PIPES) for chunk in range(2)]
    site.ticked(lambda: site.fake.having("RUNNING"))
    launcher.poll(handles)
    begun = [launcher.began(handle) is not None for handle in handles]
    assert begun == [site.job(handle).state == "RUNNING" for handle in handles]
    assert sum(begun) == 1


@pytest.mark.parametrize(
    ("command", "says"), [(["true"], "SUCCESS|^completed$"), (["false"], "^failed: .*exit ?code: 1")]
)
def test_the_end_of_a_job_is_told(site: Site, command: list[str], says: str) -> None:
    site.node.command = command
    launcher = site.launcher()
    handle = launcher.submit(attempt(), PIPES)
    site.ticked(lambda: site.job(handle).ended)
    (ended,) = launcher.poll([handle]).values()
    assert re.search(says, ended.reason, re.IGNORECASE)
    assert not ended.transient


def test_a_job_cancelled_in_the_console_is_not_made_again(site: Site) -> None:
    launcher = site.launcher()
    handle = launcher.submit(attempt(), PIPES)
    site.fake.cancel(site.job(handle))
    (ended,) = launcher.poll([handle]).values()
    assert "cancelled in the console" in ended.reason
    assert ended.stopped
    assert not ended.transient


def test_a_job_that_nobody_knows_is_gone(site: Site) -> None:
    launcher = site.launcher()
    (ended,) = launcher.poll([Handle("00gone")]).values()
    (where,) = launcher._place.values()
    assert f"unknown to the {launcher.holder} {where}" in ended.reason


def test_throttling_ends_nobody(site: Site) -> None:
    launcher = site.launcher()
    handle = launcher.submit(attempt(), PIPES)
    site.service.fail("ListJobRuns", THROTTLED)
    assert launcher.poll([handle]) == {}


# Ending them


def test_cancelling_ends_the_jobs_meant_and_no_others(site: Site) -> None:
    launcher = site.launcher()
    handles = [launcher.submit(attempt(chunk), PIPES) for chunk in range(4)]
    site.fake.tick()
    waits = site.fake.waiting[-1]
    launcher.cancel([handles[0], handles[2]])
    assert [site.job(h).state for h in handles] == ["CANCELLED", "RUNNING", "CANCELLED", waits]
    launcher.cancel([*handles[:2], Handle("00gone")])
    assert [site.job(h).state for h in handles] == ["CANCELLED", "CANCELLED", "CANCELLED", waits]


def test_one_that_is_being_cancelled_needs_no_further_call(site: Site) -> None:
    launcher = site.launcher()
    handle = launcher.submit(attempt(), PIPES)
    site.job(handle).state = "CANCEL_PENDING" if site.compute == "emr_eks" else "CANCELLING"
    site.service.fail("CancelJobRun", Fault("ValidationException", "The job run is being cancelled."))
    launcher.cancel([handle])
    assert launcher.poll([handle]) == {}


def test_what_was_throttled_is_cancelled_later_and_what_can_not_be_is_named(site: Site) -> None:
    launcher = site.launcher()
    handles = [launcher.submit(attempt(chunk), PIPES) for chunk in range(3)]
    launcher._emr = client(launcher.api, attempts=1)
    site.service.fail("CancelJobRun", THROTTLED, times=2)
    launcher.cancel(handles[:2])
    assert [site.job(h).state for h in handles] == ["CANCELLED", "CANCELLED", site.fake.waiting[0]]
    site.service.fail("CancelJobRun", Fault("AccessDeniedException", "not allowed", 403))
    with pytest.raises(RuntimeError, match=f"1 workers on {launcher.service} may .*{handles[2].id}.*not allowed"):
        launcher.cancel(handles[2:])


def test_what_the_service_refuses_is_told(site: Site) -> None:
    gone = {"LAKEHOUSE_EMR_SERVERLESS_APPLICATION": "00gone", "LAKEHOUSE_EMR_EKS_VIRTUAL_CLUSTER": "00gone"}
    with pytest.raises(NotStarted, match=r"00gone does(n't| not) exist") as refused:
        site.launcher(**gone).submit(attempt(), PIPES)
    assert not refused.value.transient
    site.service.fail("StartJobRun", Fault("ValidationException", "vCPU quota reached"))
    with pytest.raises(NotStarted, match="quota") as refused:
        site.launcher().submit(attempt(), PIPES)
    assert refused.value.transient
