"""A site of EMR on EKS for tests of what runs workers there: the service on loopback and how to use it.
What it does is emr_eks_service.py's."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from tests.support.fakes.emr_eks_service import VIRTUAL_CLUSTER, FakeEmrEks
from tests.support.fakes.job_runs import ROLE, JobRunsSite, job_runs_site
from tests.support.servers import SeaweedFS


def emr_eks_site(
    weed: SeaweedFS, folder: Path, *, master: str = "local[2]", command: Sequence[str] | None = None
) -> AbstractContextManager[JobRunsSite]:
    """EMR on EKS with one virtual cluster; the arguments are those of job_runs_site()."""
    own = {
        "LAKEHOUSE_COMPUTE": "emr_eks",
        "LAKEHOUSE_EMR_EKS_VIRTUAL_CLUSTER": VIRTUAL_CLUSTER,
        "LAKEHOUSE_EMR_EKS_ROLE": ROLE,
        "LAKEHOUSE_EMR_EKS_RELEASE": "emr-7.9.0-latest",
    }
    return job_runs_site(FakeEmrEks, "emr-containers", own, weed, folder, master=master, command=command)
